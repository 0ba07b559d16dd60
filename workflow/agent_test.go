package workflow_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
)

// TestForAgent verifies that the workflow of an agent passes on the input and its answer. A coding agent continues a
// conversation only in its own run, because a caller's run may have many tasks.
func TestForAgent(t *testing.T) {
	t.Parallel()
	load := func(body string) *workflow.Workflow {
		doc, err := frontmatter.Parse("dir/echo.prompt", []byte("---\nmodel: x/y\n---\n"+body))
		checktest.Must(t, err)
		return workflow.ForAgent(doc)
	}
	wf := load("hi")
	if wf.Hash == load("ho").Hash || wf.ID != "echo" || !slices.Equal(wf.Agents(), []string{"echo"}) {
		t.Errorf("%+v", wf)
	}
	for name, tt := range map[string]struct {
		within *session.Run
		step   string
	}{
		"own run":      {nil, "agent"},
		"caller's run": {&session.Run{Namespace: record.NamespaceMCP, ID: "run_1"}, ""},
	} {
		step := "none"
		answer := func(ctx context.Context, name string, input map[string]any) (workflow.AgentOutput, error) {
			step, _ = hosttools.StepFromContext(ctx)
			return workflow.AgentOutput{Text: fmt.Sprint(name, " ", input["task"])}, nil
		}
		engine := workflow.NewEngine(nil, agents(answer), &workflow.Options{Within: tt.within})
		res, err := engine.Run(t.Context(), wf, map[string]any{"task": "x"})
		if err != nil || res.Output != "echo x" || step != tt.step {
			t.Errorf("%s: %+v, %v, step %q", name, res, err, step)
		}
	}
}
