//go:build linux

package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// model is a model that supports all dialects. If a request offers a tool whose name ends with tool and has no result
// of it yet, the model calls the tool with args. Otherwise, it answers with text.
type model struct {
	tool, args string
	text       string
	status     int  // status of every answer, if not zero
	thinks     bool // sends reasoning before the answer
	refuses    bool // sends a refusal in its dialect
	again      bool // calls the tool even if there is a result

	mu       sync.Mutex // guards the fields below
	offered  map[string]bool
	requests []request
}

type request struct {
	path, key string
	body      []byte
}

// seen reports whether a request contained text.
func (m *model) seen(text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.requests {
		if bytes.Contains(r.body, []byte(text)) {
			return true
		}
	}
	return false
}

// key is the key that all requests must have. Sandboxes see it instead of a real key.
const key = "wc-0123456789abcdef"

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	given := r.Header.Get("x-api-key") + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + r.Header.Get("x-goog-api-key")
	m.mu.Lock()
	m.requests = append(m.requests, request{path: r.URL.Path, key: given, body: body})
	m.mu.Unlock()
	switch {
	case m.status != 0 || given != key:
		code := m.status
		if code == 0 {
			code = http.StatusUnauthorized
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("x-should-retry", "false")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"type":"error","error":{"type":"permission_error","code":%d,"message":"no"}}`, code)
	case strings.HasSuffix(r.URL.Path, "/v1/messages"):
		m.anthropic(w, body)
	case strings.HasSuffix(r.URL.Path, "/responses"):
		m.responses(w, body)
	case strings.HasSuffix(r.URL.Path, "/chat/completions"):
		m.chat(w, body)
	case strings.Contains(r.URL.Path, ":streamGenerateContent"), strings.Contains(r.URL.Path, ":generateContent"):
		m.gemini(w, body, strings.Contains(r.URL.Path, ":stream"))
	case strings.HasSuffix(r.URL.Path, "count_tokens"):
		fmt.Fprint(w, `{"input_tokens":100}`)
	default:
		http.NotFound(w, r)
	}
}

// call returns the name of the tool to call. It is empty if the model should answer.
func (m *model) call(answered bool, names ...string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	call := ""
	for _, name := range names {
		if m.offered == nil {
			m.offered = map[string]bool{}
		}
		m.offered[name] = true
		if m.tool != "" && strings.HasSuffix(name, m.tool) && (m.again || !answered) {
			call = name
		}
	}
	return call
}

type obj = map[string]any

// events writes server-sent events. An event with a "type" also gets a name.
func events(w http.ResponseWriter, list ...obj) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range list {
		b, err := json.Marshal(e)
		if err != nil {
			panic(err)
		}
		if name, ok := e["type"].(string); ok {
			fmt.Fprintf(w, "event: %s\n", name)
		}
		fmt.Fprintf(w, "data: %s\n\n", b)
	}
}

func (m *model) anthropic(w http.ResponseWriter, body []byte) {
	var req struct {
		Stream   bool
		Model    string
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
		Tools []struct{ Name string }
	}
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var names []string
	for _, t := range req.Tools {
		names = append(names, t.Name)
	}
	answered := len(req.Messages) > 0 && bytes.Contains(req.Messages[len(req.Messages)-1].Content, []byte(`"tool_result"`))
	name := m.call(answered, names...)
	usage := obj{"input_tokens": 100, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
	block, delta, reason := obj{"type": "text", "text": ""}, obj{"type": "text_delta", "text": m.text}, "end_turn"
	if name != "" {
		block = obj{"type": "tool_use", "id": "toolu_1", "name": name, "input": obj{}}
		delta, reason = obj{"type": "input_json_delta", "partial_json": m.args}, "tool_use"
	}
	message := obj{"id": "msg_1", "type": "message", "role": "assistant", "model": req.Model, "content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": usage}
	if !req.Stream {
		message["content"], message["stop_reason"] = []any{obj{"type": "text", "text": m.text}}, "end_turn"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(message) // the client detects errors
		return
	}
	if m.refuses {
		reason = "refusal"
	}
	list := []obj{{"type": "message_start", "message": message}}
	if m.thinks {
		list = append(list,
			obj{"type": "content_block_start", "index": 0, "content_block": obj{"type": "thinking", "thinking": "", "signature": ""}},
			obj{"type": "content_block_delta", "index": 0, "delta": obj{"type": "thinking_delta", "thinking": "Hm."}},
			obj{"type": "content_block_delta", "index": 0, "delta": obj{"type": "signature_delta", "signature": "eA=="}},
			obj{"type": "content_block_stop", "index": 0})
	}
	index := len(list) / 4
	events(w, append(list,
		obj{"type": "content_block_start", "index": index, "content_block": block},
		obj{"type": "content_block_delta", "index": index, "delta": delta},
		obj{"type": "content_block_stop", "index": index},
		obj{"type": "message_delta", "delta": obj{"stop_reason": reason, "stop_sequence": nil}, "usage": obj{"output_tokens": 10}},
		obj{"type": "message_stop"})...)
}

func (m *model) responses(w http.ResponseWriter, body []byte) {
	var req struct {
		Model string
		Input []struct{ Type string }
		Tools []struct {
			Type, Name string
			Tools      []struct{ Name string } // of a namespace
		}
	}
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var names []string
	space := map[string]string{}
	for _, t := range req.Tools {
		names = append(names, t.Name)
		for _, inner := range t.Tools {
			names = append(names, inner.Name)
			space[inner.Name] = t.Name
		}
	}
	answered := len(req.Input) > 0 && req.Input[len(req.Input)-1].Type == "function_call_output"
	name := m.call(answered, names...)
	item := obj{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []any{obj{"type": "output_text", "text": m.text, "annotations": []any{}}}}
	if name != "" {
		item = obj{"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "arguments": m.args, "status": "completed"}
		if space[name] != "" {
			item["namespace"] = space[name]
		}
	}
	response := obj{"id": "resp_1", "object": "response", "model": req.Model, "status": "completed", "output": []any{item},
		"usage": obj{"input_tokens": 100, "input_tokens_details": obj{"cached_tokens": 0}, "output_tokens": 10, "output_tokens_details": obj{"reasoning_tokens": 0}, "total_tokens": 110}}
	list := []obj{{"type": "response.created", "response": obj{"id": "resp_1", "object": "response", "status": "in_progress"}}, {"type": "response.output_item.added", "output_index": 0, "item": item}}
	if m.thinks {
		thought := obj{"type": "reasoning", "id": "rs_1", "summary": []any{obj{"type": "summary_text", "text": "Hm."}}}
		list = append(list[:1], obj{"type": "response.output_item.done", "output_index": 0, "item": thought}, list[1])
	}
	if name == "" {
		list = append(list, obj{"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": m.text})
	}
	events(w, append(list, obj{"type": "response.output_item.done", "output_index": 0, "item": item}, obj{"type": "response.completed", "response": response})...)
}

func (m *model) chat(w http.ResponseWriter, body []byte) {
	var req struct {
		Model    string
		Messages []struct{ Role string }
		Tools    []struct{ Function struct{ Name string } }
	}
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var names []string
	for _, t := range req.Tools {
		names = append(names, t.Function.Name)
	}
	answered := len(req.Messages) > 0 && req.Messages[len(req.Messages)-1].Role == "tool"
	name := m.call(answered, names...)
	delta, reason := obj{"role": "assistant", "content": m.text}, "stop"
	if name != "" {
		delta, reason = obj{"role": "assistant", "tool_calls": []any{obj{"index": 0, "id": "call_1", "type": "function", "function": obj{"name": name, "arguments": m.args}}}}, "tool_calls"
	}
	chunk := func(delta obj, finish any) obj {
		return obj{"id": "c", "object": "chat.completion.chunk", "created": 1, "model": req.Model, "choices": []any{obj{"index": 0, "delta": delta, "finish_reason": finish}}}
	}
	last := chunk(obj{}, reason)
	last["usage"] = obj{"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
	events(w, chunk(delta, nil), last)
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (m *model) gemini(w http.ResponseWriter, body []byte, stream bool) {
	var req struct {
		Contents []struct {
			Parts []struct{ FunctionResponse json.RawMessage }
		}
		Tools []struct{ FunctionDeclarations []struct{ Name string } }
	}
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var names []string
	for _, t := range req.Tools {
		for _, f := range t.FunctionDeclarations {
			names = append(names, f.Name)
		}
	}
	answered := false
	if n := len(req.Contents); n > 0 {
		for _, p := range req.Contents[n-1].Parts {
			answered = answered || p.FunctionResponse != nil
		}
	}
	part := obj{"text": m.text}
	if name := m.call(answered, names...); name != "" {
		var args obj
		if err := json.Unmarshal([]byte(m.args), &args); err != nil {
			panic(err)
		}
		part = obj{"functionCall": obj{"name": name, "args": args}}
	}
	parts, reason := []any{part}, "STOP"
	if m.thinks {
		parts = []any{obj{"text": "Hm.", "thought": true}, part}
	}
	if m.refuses {
		parts, reason = []any{}, "SAFETY"
	}
	answer := obj{
		"candidates":    []any{obj{"content": obj{"role": "model", "parts": parts}, "finishReason": reason, "index": 0}},
		"usageMetadata": obj{"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110},
	}
	if stream {
		events(w, answer)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client detects errors
}

// serve makes the model available to commands on the sandbox's loopback interface, and returns its address there.
func (m *model) serve(t *testing.T, s *session.Session) string {
	t.Helper()
	l := &listener{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{Handler: m}
	go func() { _ = server.Serve(l) }() // ends with the listener
	t.Cleanup(func() { _ = server.Close() })
	addr, _, err := s.Serve(t.Context(), sandbox.Service{Name: "model", Handle: l.handle})
	must(t, err)
	return "http://" + addr
}

// listener accepts the connections of a service.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *listener) handle(ctx context.Context, c *sandbox.ServiceConn) {
	conn := &watchedConn{Conn: c, closed: make(chan struct{})}
	select {
	case l.conns <- conn:
	case <-l.done:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-conn.closed:
	case <-ctx.Done():
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, errors.New("closed")
	}
}

func (l *listener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// watchedConn signals when it is closed.
type watchedConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *watchedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
