//go:build linux

package executor

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/executor"
	gateway "github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/llmtest"
	"github.com/workcell-dev/workcell/tools"
)

// operatorsKey is the provider's key, which must stay on the host.
const operatorsKey = "sk-canary-of-the-operator"

// agentRig is a Genkit instance whose agents are coding agents. Their model plays a script behind the model proxy.
type agentRig struct {
	t     *testing.T
	g     *genkit.Genkit
	model *llmtest.Server
}

func newAgentRig(t *testing.T, script func(n int, r llmtest.Request) llmtest.Answer) *agentRig {
	t.Helper()
	r := &agentRig{t: t, model: llmtest.New(script)}
	web := httptest.NewServer(r.model)
	t.Cleanup(web.Close)
	proxy := proxyTo(t, web.URL, "anthropic", "openai", "googleai")
	registry := orders(t, func(string) {})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r.g = genkit.Init(ctx, genkit.WithPlugins(&tools.Plugin{Manager: manager(t), HostTools: registry, Models: proxy}),
		genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."))
	return r
}

// proxyTo returns a model proxy with these providers, which are all behind an address.
func proxyTo(t *testing.T, address string, names ...string) *gateway.Proxy {
	t.Helper()
	dialects := map[string][]gateway.Dialect{
		"anthropic": {gateway.Anthropic}, "openai": {gateway.OpenAIResponses, gateway.OpenAIChat}, "googleai": {gateway.Gemini},
	}
	var list []gateway.Provider
	for _, name := range names {
		base, err := url.Parse(address)
		must(t, err)
		if name == "openai" {
			base = base.JoinPath("v1")
		}
		list = append(list, gateway.Provider{Name: name, Dialects: dialects[name], Base: base, Auth: func(h http.Header) error {
			h.Set("Authorization", "Bearer "+operatorsKey)
			return nil
		}})
	}
	proxy, err := gateway.New(list, nil)
	must(t, err)
	return proxy
}

func (r *agentRig) agent(model, frontmatter string) *tools.Agent {
	r.t.Helper()
	file := "---\nmodel: " + model + "\n" + frontmatter + "\n---\nLook order 42 up.\n"
	agents, err := tools.LoadAgentsFS(r.g, fstest.MapFS{"desk.prompt": {Data: []byte(file)}})
	must(r.t, err)
	return agents["desk"]
}

// lookUp makes the model call the tool once and then answer with the result.
func lookUp(_ int, r llmtest.Request) llmtest.Answer {
	if results := r.Results(); len(results) > 0 {
		return llmtest.Answer{Text: "The tool said " + strings.Join(results, " ")}
	}
	return callTool(r)
}

// callTool calls the tool.
func callTool(r llmtest.Request) llmtest.Answer {
	for name := range r.Tools() {
		if strings.HasSuffix(name, "orders_lookup") {
			return llmtest.Answer{Calls: []llmtest.Call{{Name: name, Input: llmtest.Object{"id": "42"}}}}
		}
	}
	return llmtest.Answer{Text: "There is no tool."}
}

// providers are Genkit's names of the agents' models.
var providers = map[string]string{
	"claude": "anthropic/claude-sonnet-4-5", "codex": "openai/gpt-5.1-codex", "opencode": "anthropic/claude-sonnet-4-5", "gemini": "googleai/gemini-2.5-pro",
	"custom": "anthropic/claude-sonnet-4-5",
}

const sandboxOf = "sandbox: {mode: executor, limits: {memory_mb: 2048, pids: 512, cpu_millicores: 2000}, host_tools: {allow: [orders.lookup]}, executor: "

// TestAgent: an agent in mode executor answers with the coding agent's result. The coding agent uses the host tool, and
// a model for which it has no key. The cost must match the model's count.
func TestAgent(t *testing.T) {
	each(t, func(t *testing.T, a agent) {
		r := newAgentRig(t, lookUp)
		var told []tools.ToolEvent
		var text strings.Builder
		res, err := r.agent(providers[a.Name()], sandboxOf+a.Name()+"}").Run(t.Context(), nil, &tools.RunOptions{
			OnTool: func(e tools.ToolEvent) { told = append(told, e) }, OnText: func(s string) { text.WriteString(s) },
		})
		must(t, err)
		if !strings.Contains(res.Text, "12.5") || !strings.Contains(text.String(), "12.5") || res.Model != providers[a.Name()] || res.ToolCalls != 1 {
			t.Errorf("%+v, streamed %q", res, text.String())
		}
		if len(told) != 2 || told[0].Tool != "workcell.orders_lookup" || !told[1].Done || told[1].Failure != "" {
			t.Errorf("tools: %+v", told)
		}
		used, got := r.model.Used(), res.Executor.Metered
		if got.InputTokens != used.Input || got.OutputTokens != used.Output || got.Requests != used.Requests || !got.CostKnown || got.CostUSD <= 0 ||
			int64(res.InputTokens) != used.Input || res.Executor.Outcome != executor.Completed {
			t.Errorf("metered %+v, used %+v, %s", got, used, res.Executor.Outcome)
		}
		for _, req := range r.model.Requests() {
			if req.Header.Get("Authorization") != "Bearer "+operatorsKey {
				t.Errorf("the model was asked with %v", req.Header)
			}
		}
	})
}

// TestAgentEnds: each reason for stopping a coding agent is a distinct error with the usage so far.
func TestAgentEnds(t *testing.T) {
	t.Parallel()
	again := func(_ int, r llmtest.Request) llmtest.Answer { return callTool(r) }
	for name, tt := range map[string]struct {
		executor string
		want     error
		limit    string
	}{
		"turns":  {"{command: claude, max_turns: 3}", ai.ErrMaxTurnsExceeded, "executor.max_turns (3); raise it"},
		"budget": {"{command: claude, budget: {usd: 0.05}}", executor.ErrBudget, "executor.budget.usd (0.05); raise it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newAgentRig(t, again)
			res, err := r.agent(providers["claude"], sandboxOf+tt.executor+"}").Run(t.Context(), nil, nil)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.limit) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if res.Executor == nil || res.Executor.Metered.Requests == 0 || res.Executor.Metered.Requests > 10 {
				t.Errorf("%+v", res.Executor)
			}
		})
	}
}
