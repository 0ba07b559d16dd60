package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"
	"github.com/firebase/genkit/go/plugins/anthropic"
	"github.com/firebase/genkit/go/plugins/compat_oai/openai"
	"github.com/firebase/genkit/go/plugins/googlegenai"
	"github.com/firebase/genkit/go/plugins/ollama"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/tools"
)

// localOnly keeps the HTTP clients of this process from talking to anything but this machine. The function that it returns
// closes the connections that are kept for later.
func localOnly() (closeIdle func()) {
	transport := &http.Transport{}
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if host, _, err := net.SplitHostPort(addr); err != nil || host != "127.0.0.1" {
			return nil, fmt.Errorf("a test wanted to reach %s", addr)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	http.DefaultTransport = transport
	return transport.CloseIdleConnections
}

// toolCall is a call that a fake provider's model makes.
type toolCall struct {
	name  string
	input obj
}

// vendor speaks one provider's wire format.
type vendor struct {
	name   string
	model  string
	path   string // of the requests that ask the model
	plugin func(t *testing.T, url string) api.Plugin
	calls  func([]toolCall) obj
	text   func(string) obj
}

func vendors() []vendor {
	return []vendor{gemini(), claude(), gpt(), llama()}
}

func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// each makes one part of an answer of each call.
func each(calls []toolCall, part func(i int, c toolCall) obj) []obj {
	var parts []obj
	for i, c := range calls {
		parts = append(parts, part(i, c))
	}
	return parts
}

func gemini() vendor {
	answer := func(parts ...obj) obj {
		return obj{"candidates": []obj{{"content": obj{"role": "model", "parts": parts}, "finishReason": "STOP"}}, "usageMetadata": obj{"promptTokenCount": 5, "candidatesTokenCount": 2}}
	}
	return vendor{
		name: "gemini", model: "googleai/gemini-2.5-flash", path: ":generateContent",
		plugin: func(_ *testing.T, url string) api.Plugin { return &googlegenai.GoogleAI{APIKey: "key", BaseURL: url} },
		calls: func(calls []toolCall) obj {
			return answer(each(calls, func(_ int, c toolCall) obj { return obj{"functionCall": obj{"name": c.name, "args": c.input}} })...)
		},
		text: func(s string) obj { return answer(obj{"text": s}) },
	}
}

func claude() vendor {
	answer := func(stop string, content ...obj) obj {
		return obj{"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": content, "stop_reason": stop, "usage": obj{"input_tokens": 5, "output_tokens": 2}}
	}
	return vendor{
		name: "anthropic", model: "anthropic/claude-sonnet-4-5", path: "/v1/messages",
		plugin: func(_ *testing.T, url string) api.Plugin { return &anthropic.Anthropic{APIKey: "key", BaseURL: url} },
		calls: func(calls []toolCall) obj {
			return answer("tool_use", each(calls, func(i int, c toolCall) obj {
				return obj{"type": "tool_use", "id": fmt.Sprintf("tu_%d", i), "name": c.name, "input": c.input}
			})...)
		},
		text: func(s string) obj { return answer("end_turn", obj{"type": "text", "text": s}) },
	}
}

func gpt() vendor {
	answer := func(reason string, message obj) obj {
		message["role"] = "assistant"
		return obj{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []obj{{"index": 0, "finish_reason": reason, "message": message}}, "usage": obj{"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}
	}
	return vendor{
		name: "openai", model: "openai/gpt-4.1", path: "/chat/completions",
		plugin: func(t *testing.T, url string) api.Plugin {
			t.Setenv("OPENAI_BASE_URL", url+"/v1/")
			return &openai.OpenAI{APIKey: "key"}
		},
		calls: func(calls []toolCall) obj {
			return answer("tool_calls", obj{"content": nil, "tool_calls": each(calls, func(i int, c toolCall) obj {
				return obj{"id": fmt.Sprintf("call_%d", i), "type": "function", "function": obj{"name": c.name, "arguments": text(c.input)}}
			})})
		},
		text: func(s string) obj { return answer("stop", obj{"content": s}) },
	}
}

func llama() vendor {
	answer := func(message obj) obj {
		message["role"] = "assistant"
		return obj{"model": "llama3.1", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": true}
	}
	return vendor{
		name: "ollama", model: "ollama/llama3.1", path: "/api/chat",
		plugin: func(_ *testing.T, url string) api.Plugin { return &ollama.Ollama{ServerAddress: url, Timeout: 60} },
		calls: func(calls []toolCall) obj {
			return answer(obj{"content": "", "tool_calls": each(calls, func(_ int, c toolCall) obj {
				return obj{"function": obj{"name": c.name, "arguments": c.input}}
			})})
		},
		text: func(s string) obj { return answer(obj{"content": s}) },
	}
}

// objects calls visit for each object in v, outer ones first.
func objects(v any, visit func(obj)) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			objects(item, visit)
		}
	case obj:
		visit(v)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			objects(v[key], visit)
		}
	}
}

// declared returns the tools that a request of any provider declares, by name.
func declared(req obj) map[string]obj {
	out := map[string]obj{}
	objects(req["tools"], func(o obj) {
		if str(o["name"]) != "" && str(o["description"]) != "" {
			out[str(o["name"])] = o
		}
	})
	return out
}

// results returns the outputs of tool calls that a request of any provider holds.
func results(req obj) []string {
	var out []string
	objects(req, func(o obj) {
		switch {
		case o["functionResponse"] != nil:
			out = append(out, text(sub(o["functionResponse"])["response"]))
		case o["type"] == "tool_result":
			out = append(out, text(o["content"]))
		case o["role"] == "tool":
			// The plugin of ollama puts the outputs of one turn into one message, one after the other.
			for dec := json.NewDecoder(strings.NewReader(text(o["content"]))); dec.More(); {
				var raw json.RawMessage
				if err := dec.Decode(&raw); err != nil {
					raw = []byte(err.Error())
				}
				out = append(out, string(raw))
			}
		}
	})
	return out
}

// fake is a provider's server on this machine. It plays a list of tool calls and then answers with the outputs.
type fake struct {
	*httptest.Server
	v     vendor
	turns [][]toolCall

	mu       sync.Mutex
	requests []obj
}

func newFake(t *testing.T, v vendor, turns ...[]toolCall) *fake {
	f := &fake{v: v, turns: turns}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	body, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasSuffix(r.URL.Path, f.v.path) {
		// What plugins ask beside the model: lists of models, capabilities.
		reply := obj{"models": []obj{}, "capabilities": []string{"completion", "tools"}, "data": []obj{}}
		if err := json.NewEncoder(w).Encode(reply); err != nil {
			panic(err)
		}
		return
	}
	var req obj
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	f.requests = append(f.requests, req)
	n := len(f.requests)
	f.mu.Unlock()
	reply := f.v.text("done")
	if n <= len(f.turns) {
		reply = f.v.calls(f.turns[n-1])
	}
	if err := json.NewEncoder(w).Encode(reply); err != nil {
		panic(err)
	}
}

// TestProviders runs tool calls through the real plugins of the providers, each against a server that speaks its
// protocol on this machine, and pins what each is told of the tools.
func TestProviders(t *testing.T) {
	for _, v := range vendors() {
		for mode, tt := range map[string]struct {
			sandbox tools.Sandbox
			turns   [][]toolCall
			want    []string // parts of the outputs
		}{
			"code": {codeMode(), [][]toolCall{
				{
					{"sandbox_exec", obj{"cmd": []string{"sh", "-c", "echo $A $B"}, "env": obj{"A": "1 2", "B": "x=y"}, "timeout_seconds": 30}},
					{"sandbox_fs_write", obj{"path": "d/f.txt", "contents": "text\n", "mode": "0600"}},
					{"sandbox_exec", obj{"command": "sleep 0.1; echo shell"}},
				},
				{{"sandbox_fs_read", obj{"path": "d/f.txt"}}, {"sandbox_exec", obj{"cmdd": 1}}, {"no_such_tool", obj{}}},
			}, []string{"1 2 x=y", `size_bytes`, "shell", `text\n`, `did you mean`, `there is no tool`}},
			"compute": {bash(), [][]toolCall{{
				{"sandbox_run", obj{"code": "cat in/a.txt; echo $A", "env": obj{"A": "b"}, "files": obj{"in/a.txt": "from a file "}}},
				{"sandbox_run", obj{"code": "echo second", "args": []string{"x"}}},
			}}, []string{"from a file b", "second"}},
		} {
			t.Run(v.name+" "+mode, func(t *testing.T) {
				f := newFake(t, v, tt.turns...)
				r := newRig(t, v.plugin(t, f.URL))
				resp, err := genkit.Generate(context.Background(), r.g, ai.WithModelName(v.model), ai.WithPrompt("go"), ai.WithUse(r.plugin.Use(tt.sandbox)))
				if err != nil || resp.Text() != "done" {
					t.Fatalf("%v: %v", resp, err)
				}
				var names []string
				for _, tool := range tools.ToolsOf(tt.sandbox.Mode) {
					names = append(names, tool.Name())
				}
				told := declared(f.requests[0])
				if diff := cmp.Diff(names, slices.Sorted(maps.Keys(told))); diff != "" {
					t.Errorf("declared tools (-want +got):\n%s", diff)
				}
				checkGolden(t, filepath.Join("providers", v.name+"-"+mode), told)
				got := results(f.requests[len(tt.turns)])
				if len(got) != len(tt.want) {
					t.Fatalf("%d results: %v", len(got), got)
				}
				for i, want := range tt.want {
					// Some providers get the output as JSON inside of text.
					if got := strings.ReplaceAll(got[i], `\\n`, `\n`); !strings.Contains(got, want) {
						t.Errorf("result %d: %s, want %s", i, got, want)
					}
				}
				if r.engine.open() != 0 {
					t.Error("a sandbox is left")
				}
			})
		}
	}
}

// TestTypedAnswerWithTools asks each provider for a typed answer after a tool call. Gemini before 3 refuses requests that
// have tools and a response type.
func TestTypedAnswerWithTools(t *testing.T) {
	for _, v := range vendors() {
		t.Run(v.name, func(t *testing.T) {
			answer := v.text
			v.text = func(string) obj { return answer(`{"passed": true}`) }
			f := newFake(t, v, []toolCall{{"sandbox_exec", obj{"command": "true"}}})
			r := newRig(t, v.plugin(t, f.URL))
			a := r.agent("typed", "---\nmodel: "+v.model+"\nsandbox: {mode: code, runtime: bash}\noutput: {schema: {passed: boolean}}\n---\nTest it.")
			res, err := a.Run(context.Background(), nil, nil)
			if diff := cmp.Diff(any(map[string]any{"passed": true}), res.Output); err != nil || diff != "" {
				t.Fatalf("%v (-want +got):\n%s", err, diff)
			}
			if len(f.requests) != 2 {
				t.Fatalf("%d requests", len(f.requests))
			}
			for _, req := range f.requests {
				if config := sub(req["generationConfig"]); config["responseMimeType"] != nil || config["responseSchema"] != nil || config["responseJsonSchema"] != nil {
					t.Errorf("Gemini is asked for a type beside tools: %v", config)
				}
			}
		})
	}
}
