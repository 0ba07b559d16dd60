package hosttools

import (
	"fmt"
	"testing"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
)

// A condition knows the workflow and the step, and the calls of an agent count over all of its steps.
func TestWorkflow(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		r := newRig(t, m, orders(nil))
		const program = `
from workcell import tools, ToolError
for n in range(2):
    try: print(tools.orders.lookup(id=str(n))["total"])
    except ToolError as e: print(e.code)`
		desk, outputs := r.agent("desk", script(`[{tool: orders.lookup, when: 'run.workflow == "shop" && run.step != "second"', max_calls: 3}]`), program, "", program, "", program)
		wf, err := workflow.Parse("shop.yaml", []byte(`
id: shop
steps:
  - {id: first, type: agent, agent: desk}
  - {id: second, type: agent, agent: desk}
  - {id: third, type: agent, agent: desk}
`), nil)
		must(t, err)
		_, err = workflow.NewEngine(m, workflow.Agents{"desk": desk}, nil).Run(t.Context(), wf, nil)
		must(t, err)
		got := ""
		for _, out := range outputs() {
			got += fmt.Sprint(out["stdout"])
		}
		if want := "12.5\n12.5\npermission_denied\npermission_denied\n12.5\nquota_exceeded\n"; got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	})
}
