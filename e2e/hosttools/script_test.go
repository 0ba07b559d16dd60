package hosttools

import (
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/session"
)

// TestScriptCallsTools: an agent's program can call a host tool and print the result.
func TestScriptCallsTools(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		r := newRig(t, m, orders(nil))
		outputs := r.run(t.Context(), "desk", script("[orders.lookup, orders.export]"),
			`from workcell import tools; print(tools.orders.lookup(id="42"))`,
			`from workcell import tools, result, ToolError
import os
open("kept.txt", "w").write("kept")
try: tools.orders.refund(id="42")
except ToolError as e: print(e.code)
try: tools.orders.lookup(id=42)
except ToolError as e: print(e.code)
print(len(tools.orders.export()), os.listdir("/workspace/.workcell/results"))
tools.orders.export(_save="all.txt")
print(sorted(os.listdir(os.environ["WORKCELL_TOOLS_DIR"])))
result({"sum": sum(tools.orders.lookup(id=str(n))["total"] for n in range(20))})`,
			`import os; print(open("kept.txt").read(), os.path.getsize("all.txt"), sorted(os.listdir(".workcell/run") + os.listdir(".workcell/results")).__len__())`)
		if len(outputs) != 3 {
			t.Fatalf("%d outputs: %v", len(outputs), outputs)
		}
		if got := outputs[0]["stdout"]; got != "{'order': {'id': '42'}, 'total': 12.5}\n" {
			t.Errorf("%v", outputs[0])
		}
		if got, want := outputs[1]["stdout"], "not_found\ninvalid_argument\n1048576 []\n['INDEX.md', 'json', 'python']\n"; got != want {
			t.Errorf("%v, want %q", outputs[1], want)
		}
		if sum, _ := outputs[1]["result"].(obj); sum["sum"] != 250.0 {
			t.Errorf("the result is %v", outputs[1]["result"])
		}
		counts, _ := outputs[1]["host_calls"].(obj)
		if byTool, _ := counts["by_tool"].(obj); counts["total"] != 24.0 || counts["failed"] != 2.0 || byTool["orders.lookup"] != 21.0 {
			t.Errorf("host_calls is %v", counts)
		}
		if got, _ := outputs[2]["stdout"].(string); !strings.HasPrefix(got, "kept 1048576 1") {
			t.Errorf("%v: the next call does not see the files, or results remain", outputs[2])
		}
	})
}
