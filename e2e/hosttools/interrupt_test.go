//go:build linux

package hosttools

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// TestInterrupt: a call that needs approval interrupts the Generate call. The restart decides, and gets the output of
// the same command, which waited in the sandbox. Commands without a restart, and restarts without a waiting command,
// have no bad effects.
func TestInterrupt(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		registry, err := hosttools.New(nil, orders(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = registry.Close() }) // with functions as tools
		plugin := &tools.Plugin{Manager: m, HostTools: registry, ApprovalInterrupts: true}
		g := genkit.Init(t.Context(), genkit.WithPlugins(plugin), genkit.WithPromptDir("."), genkit.WithPromptFS(tools.PromptFS(fstest.MapFS{"desk.prompt": {Data: []byte(
			"---\nmodel: test/asks\nsandbox: {mode: script, image: " + pythonImage + ", host_tools: {allow: [{tool: orders.refund, ask: \"true\"}]}}\n---\nGo on.\n")}})))
		use := ai.WithUse(plugin.Use(tools.Sandbox{
			Mode: frontmatter.ModeScript, Image: pythonImage,
			HostTools: &hosttools.Rules{Allow: []hosttools.Rule{{Tool: "orders.lookup"}, {Tool: "orders.refund", Ask: "true"}}},
		}))
		var out map[string]any
		model := genkit.DefineModelAction(g, "test/asks", &ai.ModelOptions{Supports: &ai.ModelSupports{Multiturn: true, SystemRole: true, Tools: true}},
			func(_ context.Context, req *ai.ModelRequest, _ any, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
				last := req.Messages[len(req.Messages)-1]
				part := ai.NewToolRequestPart(&ai.ToolRequest{Name: "sandbox_run", Ref: "1", Input: map[string]any{"code": `
from workcell import tools, ToolDenied
import os
print("pid", os.getpid())
for n in (1, 2):
    try: print(tools.orders.refund(id=str(n)))
    except ToolDenied: print("denied")`}})
				if last.Role == ai.RoleTool {
					out, _ = last.Content[0].ToolResponse.Output.(map[string]any)
					part = ai.NewTextPart("done")
				}
				return &ai.ModelResponse{Request: req, Message: &ai.Message{Role: ai.RoleModel, Content: []*ai.Part{part}}, FinishReason: ai.FinishReasonStop}, nil
			})
		generate := func(ctx context.Context, options ...ai.GenerateOption) *ai.ModelResponse {
			t.Helper()
			resp, err := genkit.Generate(ctx, g, append(options, ai.WithModel(model), use)...)
			// Genkit returns an interrupt of a restarted call with an error.
			if err != nil && (resp == nil || resp.FinishReason != ai.FinishReasonInterrupted) {
				t.Fatal(err)
			}
			return resp
		}
		restart := func(ctx context.Context, resp *ai.ModelResponse, allow bool) *ai.ModelResponse {
			t.Helper()
			asked := interruptOf(t, resp)
			part := ai.NewToolRequestPart(resp.Interrupts()[0].ToolRequest)
			part.Metadata = map[string]any{"resumed": map[string]any{"approval": asked["approval"], "allow": allow}}
			return generate(ctx, ai.WithMessages(resp.History()...), ai.WithToolRestarts(part))
		}
		run := session.Run{Namespace: record.NamespaceAgent, ID: session.NewRunID()}
		ctx := session.WithRun(t.Context(), run)
		first := generate(ctx, ai.WithPrompt("go"))
		asked := interruptOf(t, first)
		if asked["tool"] != "orders.refund" || asked["arguments"] != `{"id":"1"}` || asked["exec_id"] == "" || asked["sandbox_id"] == "" {
			t.Errorf("the interrupt says %v", asked)
		}
		// Another run cannot answer.
		other := session.WithRun(t.Context(), session.Run{Namespace: record.NamespaceAgent, ID: session.NewRunID()})
		if restart(other, first, true); !strings.Contains(fmt.Sprint(out["error"]), "no longer pending") {
			t.Errorf("another run: %v", out)
		}
		second := restart(ctx, first, true)
		if again := interruptOf(t, second); again["exec_id"] != asked["exec_id"] || again["arguments"] != `{"id":"2"}` {
			t.Errorf("the second interrupt says %v, the first %v", again, asked)
		}
		restart(ctx, second, false)
		if got := fmt.Sprint(out["stdout"]); !strings.HasPrefix(got, "pid ") || !strings.HasSuffix(got, "\nrefunded\ndenied\n") || strings.Count(got, "pid") != 1 {
			t.Errorf("output %v", out)
		}
		if restart(ctx, first, true); !strings.Contains(fmt.Sprint(out["error"]), "no longer pending") {
			t.Errorf("a second answer: %v", out)
		}
		// For an agent's file loaded by Genkit, the restart continues with the prompt rendered again.
		desk := genkit.LookupPrompt(g, "desk")
		resp, err := desk.Execute(ctx)
		must(t, err)
		for range 2 {
			asked := interruptOf(t, resp)
			opts, err := desk.Render(ctx, nil)
			must(t, err)
			part := ai.NewToolRequestPart(resp.Interrupts()[0].ToolRequest)
			part.Metadata = map[string]any{"resumed": map[string]any{"approval": asked["approval"], "allow": true}}
			opts.Messages, opts.Resume = resp.History(), &ai.GenerateActionResume{Restart: []*ai.Part{part}}
			if resp, err = genkit.GenerateWithRequest(ctx, g, opts, nil, nil); err != nil && (resp == nil || resp.FinishReason != ai.FinishReasonInterrupted) {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(out["stdout"]); !strings.HasSuffix(got, "\nrefunded\nrefunded\n") {
			t.Errorf("a prompt's output is %v", out)
		}
		// Without an answer, the command ends with the sandboxes of the run.
		interruptOf(t, generate(ctx, ai.WithPrompt("go")))
		if err := m.CloseScope(t.Context(), run.Scope()); err != nil {
			t.Error(err)
		}
	})
}

// interruptOf returns the metadata of an interrupted call.
func interruptOf(t *testing.T, resp *ai.ModelResponse) map[string]any {
	t.Helper()
	if len(resp.Interrupts()) != 1 {
		t.Fatalf("%s: %s, not one interrupt", resp.FinishReason, resp.FinishMessage)
	}
	asked, _ := resp.Interrupts()[0].Metadata["interrupt"].(map[string]any)
	return asked
}
