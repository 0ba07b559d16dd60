package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"
	"github.com/firebase/genkit/go/plugins/anthropic"
	"github.com/firebase/genkit/go/plugins/compat_oai/openai"
	"github.com/firebase/genkit/go/plugins/googlegenai"
	"github.com/firebase/genkit/go/plugins/ollama"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/llmtest"
	"github.com/workcell-dev/workcell/tools"
)

// localOnly restricts the HTTP clients of this process to loopback connections. closeIdle closes the idle connections.
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

// vendor is a provider. Its real plugin sends requests to a server on the host.
type vendor struct {
	name   string
	model  string
	plugin func(t *testing.T, url string) api.Plugin
}

func vendors() []vendor {
	return []vendor{
		{"gemini", "googleai/gemini-2.5-flash", func(_ *testing.T, url string) api.Plugin { return &googlegenai.GoogleAI{APIKey: "key", BaseURL: url} }},
		{"anthropic", "anthropic/claude-sonnet-4-5", func(_ *testing.T, url string) api.Plugin { return &anthropic.Anthropic{APIKey: "key", BaseURL: url} }},
		{"openai", "openai/gpt-4.1", func(t *testing.T, url string) api.Plugin {
			t.Setenv("OPENAI_BASE_URL", url+"/v1/")
			return &openai.OpenAI{APIKey: "key"}
		}},
		{"ollama", "ollama/llama3.1", func(_ *testing.T, url string) api.Plugin { return &ollama.Ollama{ServerAddress: url, Timeout: 60} }},
	}
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

// toolCall is a tool call of a model.
type toolCall struct {
	name  string
	input obj
}

// fake is a provider's server on the host.
type fake struct {
	*llmtest.Server
	URL string
}

// newFake starts a server that plays a list of tool calls and then answers.
func newFake(t *testing.T, answer string, turns ...[]toolCall) fake {
	mock := llmtest.New(func(n int, _ llmtest.Request) llmtest.Answer {
		if n < len(turns) {
			var a llmtest.Answer
			for _, c := range turns[n] {
				a.Calls = append(a.Calls, llmtest.Call{Name: c.name, Input: c.input})
			}
			return a
		}
		return llmtest.Answer{Text: answer}
	})
	server := httptest.NewServer(mock)
	t.Cleanup(server.Close)
	return fake{mock, server.URL}
}

// TestProviders verifies tool calls through the real plugins of the providers. Each plugin talks to a local server that
// implements the provider's protocol. The test also pins the tool definitions in the requests.
func TestProviders(t *testing.T) {
	for _, v := range vendors() {
		for mode, tt := range map[string]struct {
			sandbox tools.Sandbox
			turns   [][]toolCall
			want    []string // parts of the outputs
		}{
			"code": {tools.Sandbox{Mode: "code", Runtime: "bash", Snapshots: true}, [][]toolCall{
				{
					{"sandbox_exec", obj{"cmd": []string{"sh", "-c", "echo $A $B"}, "env": obj{"A": "1 2", "B": "x=y"}, "timeout_seconds": 30}},
					{"sandbox_fs_write", obj{"path": "d/f.txt", "contents": "text\n", "mode": "0600"}},
					{"sandbox_exec", obj{"command": "sleep 0.1; echo shell"}},
				},
				{{"sandbox_fs_read", obj{"path": "d/f.txt"}}, {"sandbox_exec", obj{"cmdd": 1}}, {"no_such_tool", obj{}}},
			}, []string{"1 2 x=y", `size_bytes`, "shell", `text\n`, `did you mean`, `unknown tool`}},
			"compute": {bash(), [][]toolCall{{
				{"sandbox_run", obj{"code": "cat in/a.txt; echo $A", "env": obj{"A": "b"}, "files": obj{"in/a.txt": "from a file "}}},
				{"sandbox_run", obj{"code": "echo second", "args": []string{"x"}}},
			}}, []string{"from a file b", "second"}},
		} {
			t.Run(v.name+" "+mode, func(t *testing.T) {
				f := newFake(t, "done", tt.turns...)
				r := newRig(t, v.plugin(t, f.URL))
				resp, err := genkit.Generate(context.Background(), r.g, ai.WithModelName(v.model), ai.WithPrompt("go"), ai.WithUse(r.plugin.Use(tt.sandbox)))
				if err != nil || resp.Text() != "done" {
					t.Fatalf("%v: %v", resp, err)
				}
				var names []string
				for _, tool := range tools.ToolsOf(tt.sandbox.Mode) {
					names = append(names, tool.Name())
				}
				told := f.Requests()[0].Tools()
				if diff := cmp.Diff(names, slices.Sorted(maps.Keys(told))); diff != "" {
					t.Errorf("declared tools (-want +got):\n%s", diff)
				}
				checkGolden(t, filepath.Join("providers", v.name+"-"+mode), told)
				got := f.Requests()[len(tt.turns)].Results()
				if len(got) != len(tt.want) {
					t.Fatalf("%d results: %v", len(got), got)
				}
				for i, want := range tt.want {
					// Some providers get the output as JSON inside text.
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

// TestTypedAnswerWithTools verifies that each provider can give a typed answer after a tool call, with each way to call
// a model, and that agents count all tokens. Gemini before 3 rejects requests with both tools and a response type.
func TestTypedAnswerWithTools(t *testing.T) {
	const head = "sandbox: {mode: code, runtime: bash}\noutput: {schema: {passed: boolean}}\n---\nTest it."
	var res tools.AgentResult
	for way, run := range map[string]func(r *rig, model string) (any, error){
		"agent": func(r *rig, model string) (_ any, err error) {
			res, err = r.agent("typed", "---\nmodel: "+model+"\n"+head).Run(context.Background(), nil, nil)
			return res.Output, err
		},
		"prompt": func(r *rig, model string) (out any, err error) {
			p, err := tools.LoadPrompt(r.g, "typed.prompt", []byte("---\nmodel: "+model+"\n"+head))
			checktest.Must(r.t, err)
			resp, err := p.Execute(context.Background())
			checktest.Must(r.t, err)
			for _, m := range resp.History() {
				if strings.Contains(m.Text(), "following schema") && strings.HasPrefix(model, "googleai/") {
					r.t.Errorf("the history has %q", m.Text())
				}
			}
			return out, resp.Output(&out)
		},
		"data": func(r *rig, model string) (any, error) {
			schema := obj{"type": "object", "properties": obj{"passed": obj{"type": "boolean"}}}
			out, _, err := genkit.GenerateData[obj](context.Background(), r.g, ai.WithModelName(model),
				ai.WithPrompt("Test it."), ai.WithOutputSchema(schema), ai.WithUse(r.plugin.Use(codeMode())))
			checktest.Must(r.t, err)
			return *out, nil
		},
	} {
		for _, v := range vendors() {
			t.Run(way+" "+v.name, func(t *testing.T) {
				f := newFake(t, `{"passed": true}`, []toolCall{{"sandbox_exec", obj{"command": "true"}}})
				got, err := run(newRig(t, v.plugin(t, f.URL)), v.model)
				if diff := cmp.Diff(any(obj{"passed": true}), got); err != nil || diff != "" {
					t.Fatalf("%v (-want +got):\n%s", err, diff)
				}
				used := f.Used()
				switch v.name { // the plugins do not report these tokens
				case "anthropic":
					used.Input -= used.CacheWrite
				case "ollama":
					used.Input, used.Output = 0, 0
				}
				if used.Requests != 2 || way == "agent" &&
					(res.InputTokens != int(used.Input) || res.OutputTokens != int(used.Output)) {
					t.Fatalf("%+v, want %+v", res, used)
				}
				for _, req := range f.Requests() {
					config := sub(req.Body["generationConfig"])
					if strings.Contains(keys(config), "response") { // responseMimeType, responseSchema, …
						t.Errorf("the request to Gemini has a type and tools: %v", config)
					}
					if v.name == "gemini" && strings.Count(text(req.Body), "following schema") != 1 {
						t.Errorf("the request does not describe the schema: %v", req.Body)
					}
				}
			})
		}
	}
}
