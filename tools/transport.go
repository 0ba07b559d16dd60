package tools

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// ExactTransport returns a transport that sends requests of Genkit's model plugins by next. Several plugins put the output of a
// tool, or the input of an earlier call, into a string of their request as JSON, in which encoding/json escapes <, >, and &.
// Models then read \u003c where a file has <. ExactTransport removes these escapes. Other requests stay as they are.
//
// Pass it to the plugins as part of their HTTP client. For the plugin of Ollama, which has no such option, set
// [http.DefaultTransport].
func ExactTransport(next http.RoundTripper) http.RoundTripper { return exactTransport{next} }

type exactTransport struct{ next http.RoundTripper }

// chatPaths are the ends of the paths of the APIs that plugins use in this way.
var chatPaths = []string{"/chat/completions", "/messages", "/api/chat"}

func (t exactTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	chat := false
	for _, path := range chatPaths {
		chat = chat || strings.HasSuffix(req.URL.Path, path)
	}
	if !chat || req.Body == nil || req.Header.Get("Content-Encoding") != "" {
		return t.next.RoundTrip(req)
	}
	body, err := io.ReadAll(req.Body)
	_ = req.Body.Close() // it was read
	if err != nil {
		return nil, err
	}
	body = exact(body)
	req = req.Clone(req.Context())
	req.ContentLength = int64(len(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody() // never fails
	return t.next.RoundTrip(req)
}

// exact returns a request without the escapes. One that has none, or is not JSON, stays as it is.
func exact(body []byte) []byte {
	var request map[string]any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if !bytes.Contains(body, []byte(`\\u00`)) || d.Decode(&request) != nil {
		return body
	}
	messages, _ := request["messages"].([]any)
	for _, m := range messages {
		message, _ := m.(map[string]any)
		if message["role"] == "tool" {
			unescape(message, "content")
		}
		for _, c := range list(message["tool_calls"]) {
			function, _ := c["function"].(map[string]any)
			unescape(function, "arguments")
		}
		for _, block := range list(message["content"]) {
			if content := list(block["content"]); block["type"] == "tool_result" && len(content) > 0 {
				unescape(content[0], "text") // the others are text of the tool itself
			}
		}
	}
	if encoded, err := sanitize.JSON(request); err == nil {
		return encoded
	}
	return body
}

// list returns the objects of a list.
func list(v any) (objects []map[string]any) {
	items, _ := v.([]any)
	for _, item := range items {
		if object, ok := item.(map[string]any); ok {
			objects = append(objects, object)
		}
	}
	return objects
}

// escapes replaces what encoding/json escapes for HTML. A backslash that is escaped itself begins no escape.
var escapes = strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

// unescape replaces the escapes in a field that is JSON in a string.
func unescape(object map[string]any, field string) {
	if text, ok := object[field].(string); ok {
		object[field] = escapes.Replace(text)
	}
}
