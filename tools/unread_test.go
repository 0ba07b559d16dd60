package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"
	"github.com/firebase/genkit/go/plugins/anthropic"
	"github.com/firebase/genkit/go/plugins/compat_oai"
)

// babbler is a provider's server whose model calls a tool with arguments that are no JSON, as often as told, and then says
// done.
type babbler struct {
	*httptest.Server
	protocol string // "openai" or "anthropic"
	broken   []string

	mu       sync.Mutex // guards requests
	requests []obj
}

func newBabbler(t *testing.T, protocol string, broken ...string) *babbler {
	b := &babbler{protocol: protocol, broken: broken}
	b.Server = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(b.Close)
	return b
}

func (b *babbler) plugin() api.Plugin {
	if b.protocol == "anthropic" {
		return &anthropic.Anthropic{APIKey: "key", BaseURL: b.URL}
	}
	return &compat_oai.OpenAICompatible{Provider: "mine", APIKey: "key", BaseURL: b.URL}
}

func (b *babbler) model() string {
	if b.protocol == "anthropic" {
		return "anthropic/claude-sonnet-4-5"
	}
	return "mine/model"
}

func (b *babbler) serve(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	var req obj
	if err != nil || json.Unmarshal(raw, &req) != nil {
		fmt.Fprint(w, `{"data":[]}`) // a list of models
		return
	}
	b.mu.Lock()
	b.requests = append(b.requests, req)
	n := len(b.requests)
	b.mu.Unlock()
	args := ""
	if n <= len(b.broken) {
		args = b.broken[n-1]
	}
	switch {
	case b.protocol == "anthropic":
		b.claude(w, args)
	case req["stream"] == true:
		b.stream(w, args)
	default:
		message := obj{"role": "assistant", "content": "done"}
		if args != "" {
			message = obj{"role": "assistant", "content": nil, "tool_calls": []obj{{"id": "c", "type": "function", "function": obj{"name": "sandbox_exec", "arguments": args}}}}
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, text(obj{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []obj{{"index": 0, "finish_reason": "stop", "message": message}}}))
	}
}

// stream answers in OpenAI's form, the arguments in two pieces.
func (b *babbler) stream(w http.ResponseWriter, args string) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(delta obj, finish any) {
		fmt.Fprintf(w, "data: %s\n\n", text(obj{"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []obj{{"index": 0, "delta": delta, "finish_reason": finish}}}))
	}
	if args == "" {
		send(obj{"role": "assistant", "content": "done"}, nil)
		send(obj{}, "stop")
	} else {
		half := len(args) / 2
		send(obj{"role": "assistant", "tool_calls": []obj{{"index": 0, "id": "c", "type": "function", "function": obj{"name": "sandbox_exec", "arguments": args[:half]}}}}, nil)
		send(obj{"tool_calls": []obj{{"index": 0, "function": obj{"arguments": args[half:]}}}}, nil)
		send(obj{}, "tool_calls")
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// claude answers in Anthropic's form.
func (b *babbler) claude(w http.ResponseWriter, args string) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(kind string, fields obj) {
		fields["type"] = kind
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, text(fields))
	}
	send("message_start", obj{"message": obj{"id": "m", "type": "message", "role": "assistant", "model": "claude", "content": []any{}, "usage": obj{"input_tokens": 1, "output_tokens": 1}}})
	if args == "" {
		send("content_block_start", obj{"index": 0, "content_block": obj{"type": "text", "text": ""}})
		send("content_block_delta", obj{"index": 0, "delta": obj{"type": "text_delta", "text": "done"}})
	} else {
		send("content_block_start", obj{"index": 0, "content_block": obj{"type": "tool_use", "id": "t", "name": "sandbox_exec", "input": obj{}}})
		send("content_block_delta", obj{"index": 0, "delta": obj{"type": "input_json_delta", "partial_json": args}})
	}
	send("content_block_stop", obj{"index": 0})
	send("message_delta", obj{"delta": obj{"stop_reason": "end_turn"}, "usage": obj{"output_tokens": 1}})
	send("message_stop", obj{})
}

// TestUnreadableArguments: where Genkit's plugins fail on arguments that are no JSON object, which ends a run without the
// middleware, the model is told and tries again.
func TestUnreadableArguments(t *testing.T) {
	streamed := ai.WithStreaming(func(context.Context, *ai.ModelResponseChunk) error { return nil })
	for name, tt := range map[string]struct {
		protocol string
		opts     []ai.GenerateOption
	}{
		"openai":              {"openai", nil},
		"openai, streamed":    {"openai", []ai.GenerateOption{streamed}},
		"anthropic, streamed": {"anthropic", []ai.GenerateOption{streamed}},
	} {
		t.Run(name, func(t *testing.T) {
			broken := []string{`{"command": "echo "hi""}`, `{"command": "ls`}
			want := []string{"invalid character 'h' after object key:value pair", "unexpected end of JSON input"}
			if tt.protocol == "openai" {
				broken, want = append(broken, `["ls"]`), append(want, "they are of type array")
			}
			b := newBabbler(t, tt.protocol, broken...)
			r := newRig(t, b.plugin())
			generate := func(opts ...ai.GenerateOption) (*ai.ModelResponse, error) {
				opts = append(opts, tt.opts...)
				return genkit.Generate(context.Background(), r.g, append(opts, ai.WithModelName(b.model()), ai.WithPrompt("go"), ai.WithMaxTurns(20))...)
			}
			resp, err := generate(ai.WithUse(r.plugin.Use(codeMode())))
			if err != nil || resp.Text() != "done" {
				t.Fatalf("%v: %v", resp, err)
			}
			told := results(b.requests[len(broken)])
			for i := range broken {
				if !strings.Contains(told[i], want[i]) || !strings.Contains(told[i], "none of the calls was made") || !strings.Contains(told[i], "invalid_argument") {
					t.Errorf("%s: the model is told %s, want %s", broken[i], told[i], want[i])
				}
			}
			if r.engine.created() != 0 {
				t.Error("something was run")
			}
			// Without the middleware the same is the end: what it is there for.
			b.requests = nil
			shared, err := r.plugin.Tools(context.Background(), codeMode())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := generate(ai.WithTools(shared[0])); err == nil || len(b.requests) != 1 {
				t.Errorf("Genkit alone makes %d requests: %v", len(b.requests), err)
			}
			// A model that does nothing else comes to an end with the plugin's own error.
			b.requests, b.broken = nil, strings.Split(strings.Repeat("{,", 30), ",")
			_, err = generate(ai.WithUse(r.plugin.Use(codeMode())))
			if err == nil || !strings.Contains(err.Error(), "unexpected end of JSON input") || len(b.requests) != 6 {
				t.Errorf("after %d requests: %v", len(b.requests), err)
			}
		})
	}
}

// TestOtherModelErrors: a provider that fails in another way ends the run, with its own words.
func TestOtherModelErrors(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, "<html>a proxy's page</html>")
	}))
	t.Cleanup(page.Close)
	r := newRig(t, &compat_oai.OpenAICompatible{Provider: "mine", APIKey: "key", BaseURL: page.URL})
	_, err := genkit.Generate(context.Background(), r.g, ai.WithModelName("mine/model"), ai.WithPrompt("go"), ai.WithUse(r.plugin.Use(codeMode())))
	if err == nil || strings.Contains(err.Error(), "tool") {
		t.Errorf("a page instead of an answer: %v", err)
	}
}
