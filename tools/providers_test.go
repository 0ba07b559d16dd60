package tools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
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

// localOnly keeps the HTTP clients of this process from talking to anything but this machine. What it gives closes the
// connections that are kept for later.
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
	// tools and results read a request: the declared tools by name, and the outputs of tool calls.
	tools   func(req obj) map[string]obj
	results func(req obj) []string
}

func vendors() []vendor {
	return []vendor{gemini(), claude(), gpt(), llama()}
}

func list(v any) []obj {
	all := items(v)
	out := make([]obj, 0, len(all))
	for _, item := range all {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
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

func gemini() vendor {
	answer := func(parts []obj) obj {
		return obj{"candidates": []obj{{"content": obj{"role": "model", "parts": parts}, "finishReason": "STOP"}}, "usageMetadata": obj{"promptTokenCount": 5, "candidatesTokenCount": 2}}
	}
	return vendor{
		name: "gemini", model: "googleai/gemini-2.5-flash", path: ":generateContent",
		plugin: func(_ *testing.T, url string) api.Plugin { return &googlegenai.GoogleAI{APIKey: "key", BaseURL: url} },
		calls: func(calls []toolCall) obj {
			var parts []obj
			for _, c := range calls {
				parts = append(parts, obj{"functionCall": obj{"name": c.name, "args": c.input}})
			}
			return answer(parts)
		},
		text: func(s string) obj { return answer([]obj{{"text": s}}) },
		tools: func(req obj) map[string]obj {
			out := map[string]obj{}
			for _, tool := range list(req["tools"]) {
				for _, f := range list(tool["functionDeclarations"]) {
					out[str(f["name"])] = f
				}
			}
			return out
		},
		results: func(req obj) []string {
			var out []string
			for _, c := range list(req["contents"]) {
				for _, p := range list(c["parts"]) {
					if r := sub(p["functionResponse"]); r != nil {
						out = append(out, text(r["response"]))
					}
				}
			}
			return out
		},
	}
}

func claude() vendor {
	answer := func(stop string, content []obj) obj {
		return obj{"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": content, "stop_reason": stop, "usage": obj{"input_tokens": 5, "output_tokens": 2}}
	}
	return vendor{
		name: "anthropic", model: "anthropic/claude-sonnet-4-5", path: "/v1/messages",
		plugin: func(_ *testing.T, url string) api.Plugin { return &anthropic.Anthropic{APIKey: "key", BaseURL: url} },
		calls: func(calls []toolCall) obj {
			var content []obj
			for i, c := range calls {
				content = append(content, obj{"type": "tool_use", "id": fmt.Sprintf("tu_%d", i), "name": c.name, "input": c.input})
			}
			return answer("tool_use", content)
		},
		text: func(s string) obj { return answer("end_turn", []obj{{"type": "text", "text": s}}) },
		tools: func(req obj) map[string]obj {
			out := map[string]obj{}
			for _, tool := range list(req["tools"]) {
				out[str(tool["name"])] = tool
			}
			return out
		},
		results: func(req obj) []string {
			var out []string
			for _, m := range list(req["messages"]) {
				for _, c := range list(m["content"]) {
					if c["type"] == "tool_result" {
						out = append(out, text(c["content"]))
					}
				}
			}
			return out
		},
	}
}

func functions(req obj) map[string]obj {
	out := map[string]obj{}
	for _, tool := range list(req["tools"]) {
		f := sub(tool["function"])
		out[str(f["name"])] = f
	}
	return out
}

func toolMessages(req obj) []string {
	var out []string
	for _, m := range list(req["messages"]) {
		if m["role"] == "tool" {
			out = append(out, text(m["content"]))
		}
	}
	return out
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
			var made []obj
			for i, c := range calls {
				made = append(made, obj{"id": fmt.Sprintf("call_%d", i), "type": "function", "function": obj{"name": c.name, "arguments": text(c.input)}})
			}
			return answer("tool_calls", obj{"content": nil, "tool_calls": made})
		},
		text:  func(s string) obj { return answer("stop", obj{"content": s}) },
		tools: functions, results: toolMessages,
	}
}

func llama() vendor {
	return vendor{
		name: "ollama", model: "ollama/llama3.1", path: "/api/chat",
		plugin: func(_ *testing.T, url string) api.Plugin { return &ollama.Ollama{ServerAddress: url, Timeout: 60} },
		calls: func(calls []toolCall) obj {
			var made []obj
			for _, c := range calls {
				made = append(made, obj{"function": obj{"name": c.name, "arguments": c.input}})
			}
			return obj{"model": "llama3.1", "created_at": "2026-01-01T00:00:00Z", "message": obj{"role": "assistant", "content": "", "tool_calls": made}, "done": true}
		},
		text: func(s string) obj {
			return obj{"model": "llama3.1", "created_at": "2026-01-01T00:00:00Z", "message": obj{"role": "assistant", "content": s}, "done": true}
		},
		tools: functions,
		// The plugin puts the outputs of one turn into one message, one after the other.
		results: func(req obj) []string {
			var out []string
			for _, m := range toolMessages(req) {
				for dec := json.NewDecoder(strings.NewReader(m)); dec.More(); {
					var raw json.RawMessage
					if err := dec.Decode(&raw); err != nil {
						return append(out, err.Error())
					}
					out = append(out, string(raw))
				}
			}
			return out
		},
	}
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
// protocol on this machine.
func TestProviders(t *testing.T) {
	for _, v := range vendors() {
		t.Run(v.name, func(t *testing.T) {
			f := newFake(t, v,
				[]toolCall{
					{"sandbox_exec", obj{"cmd": []string{"sh", "-c", "echo $A $B"}, "env": obj{"A": "1 2", "B": "x=y"}, "timeout_seconds": 30}},
					{"sandbox_fs_write", obj{"path": "d/f.txt", "contents": "text\n", "mode": "0600"}},
					{"sandbox_exec", obj{"command": "sleep 0.1; echo shell"}},
				},
				[]toolCall{{"sandbox_fs_read", obj{"path": "d/f.txt"}}, {"sandbox_exec", obj{"cmdd": 1}}, {"no_such_tool", obj{}}},
			)
			r := newRig(t, v.plugin(t, f.URL))
			resp, err := genkit.Generate(context.Background(), r.g, ai.WithModelName(v.model), ai.WithPrompt("go"), ai.WithUse(r.plugin.Use(codeMode())))
			if err != nil || resp.Text() != "done" {
				t.Fatalf("%v: %v", resp, err)
			}
			checkDeclared(t, v, "code", f.requests[0])
			results := v.results(f.requests[2])
			if len(results) != 6 {
				t.Fatalf("%d results: %v", len(results), results)
			}
			for i, want := range []string{"1 2 x=y", `size_bytes`, "shell", `text\n`, `did you mean`, `there is no tool`} {
				// Some providers get the output as JSON inside of text.
				if got := strings.ReplaceAll(results[i], `\\n`, `\n`); !strings.Contains(got, want) {
					t.Errorf("result %d: %s, want %s", i, got, want)
				}
			}
			if r.engine.open() != 0 {
				t.Error("a sandbox is left")
			}
		})
		t.Run(v.name+" compute", func(t *testing.T) {
			f := newFake(t, v, []toolCall{
				{"sandbox_run", obj{"code": "cat in/a.txt; echo $A", "env": obj{"A": "b"}, "files": obj{"in/a.txt": "from a file "}}},
				{"sandbox_run", obj{"code": "echo second", "args": []string{"x"}}},
			})
			r := newRig(t, v.plugin(t, f.URL))
			resp, err := genkit.Generate(context.Background(), r.g, ai.WithModelName(v.model), ai.WithPrompt("go"), ai.WithUse(r.plugin.Use(bash())))
			if err != nil || resp.Text() != "done" {
				t.Fatalf("%v: %v", resp, err)
			}
			checkDeclared(t, v, "compute", f.requests[0])
			results := v.results(f.requests[1])
			if len(results) != 2 || !strings.Contains(results[0], "from a file b") || !strings.Contains(results[1], "second") {
				t.Errorf("results %v", results)
			}
		})
	}
}

// checkDeclared pins what a provider is told of the tools.
func checkDeclared(t *testing.T, v vendor, mode string, req obj) {
	t.Helper()
	declared := v.tools(req)
	var names []string
	for name := range declared {
		names = append(names, name)
	}
	slices.Sort(names)
	var want []string
	for _, tool := range tools.ToolsOf(map[string]tools.Sandbox{"code": codeMode(), "compute": bash()}[mode].Mode) {
		want = append(want, tool.Name())
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("declared tools (-want +got):\n%s", diff)
	}
	var got bytes.Buffer
	enc := json.NewEncoder(&got)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(declared); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "providers", v.name+"-"+mode+".json")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), got.String()); diff != "" {
		t.Errorf("%s (-want +got), run the test with -update when this is meant:\n%s", file, diff)
	}
}
