package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// ExactTransport returns a transport that sends requests of Genkit's model plugins by next. Several plugins put the
// output of a tool, or the input of an earlier call, into a string of their request as JSON, in which encoding/json
// escapes <, >, and &. Models then read \u003c where a file has <. ExactTransport removes these escapes. Other requests
// stay as they are.
//
// Pass it to the plugins as part of their HTTP client. For the plugin of Ollama, which has no such option, set
// [http.DefaultTransport].
func ExactTransport(next http.RoundTripper) http.RoundTripper { return exactTransport{next} }

type exactTransport struct{ next http.RoundTripper }

// chatPath matches the paths of the APIs that plugins use in this way.
var chatPath = regexp.MustCompile(`/(chat/completions|messages|api/chat)$`)

func (t exactTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	chat := chatPath.MatchString(req.URL.Path)
	if !chat || req.Body == nil || req.Header.Get("Content-Encoding") != "" {
		return t.next.RoundTrip(req)
	}
	body, err := io.ReadAll(req.Body)
	if err = errors.Join(err, req.Body.Close()); err != nil {
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
	var request object
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if !bytes.Contains(body, []byte(`\\u00`)) || d.Decode(&request) != nil {
		return body
	}
	for _, message := range request.list("messages") {
		if message["role"] == "tool" {
			message.unescape("content")
		}
		for _, call := range message.list("tool_calls") {
			function, _ := call["function"].(map[string]any)
			object(function).unescape("arguments")
		}
		for _, block := range message.list("content") {
			if content := block.list("content"); block["type"] == "tool_result" && len(content) > 0 {
				content[0].unescape("text") // the others are text of the tool itself
			}
		}
	}
	if encoded, err := sanitize.JSON(request); err == nil {
		return encoded
	}
	return body
}

type object map[string]any

// list returns the objects of a list.
func (o object) list(field string) (objects []object) {
	items, _ := o[field].([]any)
	for _, item := range items {
		if item, ok := item.(map[string]any); ok {
			objects = append(objects, item)
		}
	}
	return objects
}

// escapes replaces what encoding/json escapes for HTML. A backslash that is escaped itself begins no escape.
var escapes = strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

// unescape replaces the escapes in a field that is JSON in a string.
func (o object) unescape(field string) {
	if text, ok := o[field].(string); ok {
		o[field] = escapes.Replace(text)
	}
}
