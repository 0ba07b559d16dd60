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

// ExactTransport returns a transport that removes HTML escapes from the requests of Genkit's model plugins and sends
// the requests with next. Several plugins encode tool output, or the input of an earlier call, as a JSON string in
// their request. encoding/json escapes <, >, and & in it, so models read \u003c instead of <. ExactTransport does not
// change other requests.
//
// Set it as the transport of the plugins' HTTP client. The Ollama plugin has no such option, so set
// [http.DefaultTransport] instead.
func ExactTransport(next http.RoundTripper) http.RoundTripper { return exactTransport{next} }

type exactTransport struct{ next http.RoundTripper }

// chatPath matches the API paths of the affected plugins.
var chatPath = regexp.MustCompile(`/(chat/completions|messages|api/chat)$`)

func (t exactTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if !chatPath.MatchString(req.URL.Path) || req.Body == nil || req.Header.Get("Content-Encoding") != "" {
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

// exact returns the request without the escapes. It returns body unchanged if it has no escapes or is not JSON.
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
				content[0].unescape("text") // all later items are text of the tool itself
			}
		}
	}
	if encoded, err := sanitize.JSON(request); err == nil {
		return encoded
	}
	return body
}

type object map[string]any

// list returns the objects in a list field.
func (o object) list(field string) (objects []object) {
	items, _ := o[field].([]any)
	for _, item := range items {
		if item, ok := item.(map[string]any); ok {
			objects = append(objects, item)
		}
	}
	return objects
}

// escapes reverses the HTML escapes of encoding/json. It skips escaped backslashes, because they do not begin an
// escape.
var escapes = strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

// unescape removes the escapes from a field with JSON in a string.
func (o object) unescape(field string) {
	if text, ok := o[field].(string); ok {
		o[field] = escapes.Replace(text)
	}
}
