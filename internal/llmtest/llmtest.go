// Package llmtest provides a scripted model server for tests and demonstrations. It speaks the wire formats of
// Anthropic, OpenAI (Responses and Chat Completions), Gemini, and Ollama, with and without streaming except for Ollama.
// It counts the tokens reported in answers.
package llmtest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Object is a JSON object.
type Object = map[string]any

// Call is a tool call of the model.
type Call struct {
	Name  string
	Input any
}

// Answer is an answer of the model. It contains either tool calls or text.
type Answer struct {
	Text    string
	Calls   []Call
	Thought string      // reasoning before the answer, for Anthropic, OpenAI Responses, and Gemini
	Refused bool        // the answer is a refusal, for Anthropic and Gemini
	Used    *Usage      // the reported usage; nil for a usage based on the request
	Status  int         // the status of an error whose message is Text; zero for a normal answer
	Header  http.Header // additional headers for the response
	Gate    func()      // called between the parts of a stream; may be nil
	Cut     bool        // closes the connection in the middle of the answer
}

// Request is a request to the model.
type Request struct {
	Dialect string // anthropic, openai-responses, openai-chat, gemini, or ollama
	Path    string
	Query   string
	Header  http.Header
	Model   string
	Stream  bool
	Body    Object
}

// Usage is the token usage of answers. Input includes the tokens read from and written to caches. Output includes
// reasoning tokens.
type Usage struct {
	Requests                                        int64
	Input, Output, CacheRead, CacheWrite, Reasoning int64
}

// Server is an http.Handler that answers as a model. It is safe for concurrent use.
type Server struct {
	script func(n int, r Request) Answer

	mu       sync.Mutex // guards the fields below
	requests []Request
	used     Usage
}

// New returns a server that answers the nth request to the model with script(n, …). The first n is 0.
func New(script func(n int, r Request) Answer) *Server { return &Server{script: script} }

// Requests returns the requests to the model so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Used returns the total usage reported in all answers. Errors use nothing.
func (s *Server) Used() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// dialects returns the dialect for each suffix of a path of a request to the model.
func dialects() map[string]string {
	return map[string]string{
		"/messages": "anthropic", "/responses": "openai-responses", "/chat/completions": "openai-chat",
		":generateContent": "gemini", ":streamGenerateContent": "gemini", "/api/chat": "ollama",
	}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has disconnected
	}
	req := Request{Path: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header.Clone()}
	for suffix, dialect := range dialects() {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, suffix) {
			req.Dialect = dialect
		}
	}
	if req.Dialect == "" { // other requests of clients: lists of models, capabilities, token counts
		writeJSON(w, http.StatusOK, Object{"models": []Object{}, "capabilities": []string{"completion", "tools"}, "data": []Object{}, "input_tokens": len(raw), "totalTokens": len(raw)})
		return
	}
	if err := json.Unmarshal(raw, &req.Body); err != nil {
		writeJSON(w, http.StatusBadRequest, Object{"error": Object{"message": err.Error()}})
		return
	}
	req.read()
	s.mu.Lock()
	n := len(s.requests)
	s.requests = append(s.requests, req)
	s.mu.Unlock()
	a := s.script(n, req)
	maps.Copy(w.Header(), a.Header)
	if a.Status != 0 {
		writeJSON(w, a.Status, Object{"type": "error", "error": Object{"message": a.Text, "type": "api_error", "code": a.Status}})
		return
	}
	u := count(req.Dialect, raw, a)
	s.mu.Lock()
	s.used = s.used.plus(u)
	s.mu.Unlock()
	answers()[req.Dialect](&writer{w: w, req: req, gate: a.Gate, cut: a.Cut}, a, u)
}

// read sets the model and whether the answer is streamed. For Gemini, both come from the path.
func (r *Request) read() {
	r.Model, _ = r.Body["model"].(string)
	r.Stream, _ = r.Body["stream"].(bool)
	if r.Dialect == "gemini" {
		_, last, _ := strings.Cut(r.Path, "/models/")
		r.Model, _, _ = strings.Cut(last, ":")
		r.Stream = strings.HasSuffix(r.Path, ":streamGenerateContent")
	}
}

// count returns the usage of an answer. The numbers differ from each other and between answers. Only Anthropic reports
// the tokens written to the cache, and only Anthropic does not report reasoning tokens.
func count(dialect string, body []byte, a Answer) Usage {
	if a.Used != nil {
		u := *a.Used
		u.Requests = 1
		return u
	}
	u := Usage{Requests: 1, Input: int64(len(body))/4 + 7, Output: int64(len(pieces(a.Text))) + 11*int64(len(a.Calls)) + 1}
	u.CacheRead = u.Input / 3
	if dialect == "anthropic" {
		u.CacheWrite = u.Input / 7
	} else {
		u.Reasoning = int64(len(body) % 5)
	}
	u.Output += u.Reasoning
	return u
}

func (u Usage) plus(v Usage) Usage {
	return Usage{u.Requests + v.Requests, u.Input + v.Input, u.Output + v.Output, u.CacheRead + v.CacheRead, u.CacheWrite + v.CacheWrite, u.Reasoning + v.Reasoning}
}

// Tools returns the declarations of tools in the request, by name.
func (r Request) Tools() map[string]Object {
	out := map[string]Object{}
	objects(r.Body["tools"], func(o Object) {
		name, _ := o["name"].(string)
		if described, _ := o["description"].(string); name != "" && described != "" {
			out[name] = o
		}
	})
	return out
}

// Results returns the outputs of tool calls in the request.
func (r Request) Results() []string {
	var out []string
	objects(r.Body, func(o Object) {
		result, _ := o["functionResponse"].(Object)
		switch {
		case result != nil:
			out = append(out, text(result["response"]))
		case o["type"] == "tool_result":
			out = append(out, text(o["content"]))
		case o["type"] == "function_call_output":
			out = append(out, text(o["output"]))
		case o["role"] == "tool":
			out = append(out, split(text(o["content"]))...)
		}
	})
	return out
}

// split returns the consecutive JSON values in s. Genkit's plugin for Ollama puts the outputs of one turn into one
// message.
func split(s string) []string {
	var out []string
	for dec := json.NewDecoder(strings.NewReader(s)); dec.More(); {
		var raw json.RawMessage
		if dec.Decode(&raw) != nil {
			return append(out, s)
		}
		out = append(out, string(raw))
	}
	return out
}

// objects calls visit for each object in v, outer objects first.
func objects(v any, visit func(Object)) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			objects(item, visit)
		}
	case Object:
		visit(v)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			objects(v[key], visit)
		}
	}
}

// text returns a string unchanged, and other values as JSON.
func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// pieces splits a text into the parts of a stream.
func pieces(s string) []string { return strings.SplitAfter(s, " ") }

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
}
