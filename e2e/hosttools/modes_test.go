package hosttools

import (
	"strings"
	"testing"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/session"
)

const nodeImage = "workcell/node:22" // built by `make images`

// TestNodeScript: Node programs can call tools, both as a module that imports the library and as a script that uses the
// global object.
func TestNodeScript(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		r := newRig(t, m, orders(nil))
		sandbox := "{mode: script, runtime: node, image: " + nodeImage + ", host_tools: {allow: [orders.lookup, orders.export]}}"
		outputs := r.run(t.Context(), "desk", sandbox,
			`const text = await tools.orders.export();
let refused;
try { await tools.orders.refund({id: "1"}); } catch (e) { refused = e.code; }
const all = await Promise.all([...Array(20).keys()].map(n => tools.orders.lookup({id: String(n)})));
console.log(text.length, refused, all[7].order.id);
result({sum: all.reduce((sum, o) => sum + o.total, 0)});`,
			`import {tools, ToolError} from "/.workcell/lib/node/workcell/index.mjs";
try { await tools.orders.lookup({id: 42}); } catch (e) { console.log(e instanceof ToolError, e.code); }
console.log(globalThis.tools === tools, (await globalThis.tools.orders.lookup({id: "42"})).total);`,
			`import {createRequire} from "node:module";
const {tools} = createRequire(import.meta.url)("workcell");
const saved = await tools.orders.export({}, {save: "all.txt"});
console.log(saved.path, saved.bytes);`)
		if len(outputs) != 3 {
			t.Fatalf("%d outputs: %v", len(outputs), outputs)
		}
		for i, want := range []string{"1048576 not_found 7\n", "true invalid_argument\ntrue 12.5\n", "/workspace/all.txt 1048576\n"} {
			if outputs[i]["stdout"] != want {
				t.Errorf("program %d: %v, want %q", i, outputs[i], want)
			}
		}
		value, _ := outputs[0]["result"].(obj)
		counts, _ := outputs[0]["host_calls"].(obj)
		if value["sum"] != 250.0 || counts["total"] != 22.0 || counts["failed"] != 1.0 {
			t.Errorf("%v", outputs[0])
		}
	})
}

// TestCode verifies mode code. The model gets the index of the tools in sandbox_exec, whose commands call tools from
// programs and a shell. It also gets the index in the note of sandbox_open.
func TestCode(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		for name, tc := range map[string]struct{ image, program, want string }{
			"python": {pythonImage, `python3 -c 'from workcell import tools; print(tools.orders.lookup(id="42")["total"])'`, "12.5\n"},
			"node":   {nodeImage, `node -e 'require("workcell").tools.orders.lookup({id: "42"}).then(o => console.log(o.total))'`, "12.5\n"},
			"shell":  {pythonImage, `tools call orders.refund '{"id": "42"}'; echo $?; tools call orders.lookup '{"id": "42"}'`, "77\n" + `{"order":{"id":"42"},"total":12.5}` + "\n"},
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, m, orders(nil))
				sandbox := "{mode: code, image: " + tc.image + ", host_tools: {allow: [orders.lookup, {tool: orders.refund, when: 'false'}]}}"
				a, outputs := r.calling(name, sandbox, &ai.ToolRequest{Name: "sandbox_open", Input: obj{}}, &ai.ToolRequest{Name: "sandbox_exec", Input: obj{"command": tc.program}})
				_, err := a.Run(t.Context(), nil, nil)
				must(t, err)
				if exec := r.offered["sandbox_exec"]; exec == nil || !strings.Contains(exec.Description, "orders.lookup(id) - Finds an order.") {
					t.Errorf("sandbox_exec is described as %+v", exec)
				}
				got := outputs()
				if len(got) != 2 {
					t.Fatalf("%d outputs: %v", len(got), got)
				}
				if note, _ := got[0]["note"].(string); !strings.Contains(note, "orders.lookup(id) - Finds an order.") {
					t.Errorf("the note is %q", note)
				}
				counts, _ := got[1]["host_calls"].(obj)
				byTool, _ := counts["by_tool"].(obj)
				if got[1]["stdout"] != tc.want || byTool["orders.lookup"] != 1.0 {
					t.Errorf("%v, want %q", got[1], tc.want)
				}
			})
		}
	})
}
