package hosttools

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/e2e/npmtest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// run runs a command with tools, and returns the output.
func (d *desk) run(req sandbox.ExecRequest, argv ...string) string {
	d.t.Helper()
	req.Argv = argv
	d.at.Grant(d.t.Context(), d.set, &req)
	res, err := d.s.Exec(d.t.Context(), req)
	must(d.t, err)
	if res.ExitCode != 0 {
		d.t.Fatalf("%s: %s %d\n%s\n%s", argv, res.Status, res.ExitCode, res.Stdout.Bytes(), res.Stderr.Bytes())
	}
	return string(res.Stdout.Bytes())
}

// large are the limits of a sandbox for programs of hundreds of megabytes.
var large = backend.Limits{MemoryBytes: 4 << 30, WorkspaceBytes: 4 << 30, FileBytes: 1 << 30, PIDs: 512}

// TestInspectorInside: the Inspector can list and call tools in a sandbox. One engine is enough, because the bridge
// does not depend on the engine, as TestCancelledRequest verifies.
func TestInspectorInside(t *testing.T) {
	t.Parallel()
	node, modules := npmtest.Tools(t)
	d := newDeskIn(t, managerOf(t, enginetest.Driver(t, enginetest.Names()[0])), session.Request{Image: "workcell/node:22", Limits: large}, nil, allow("orders.lookup"), nil, orders(nil))
	tar := exec.Command("tar", "-C", filepath.Dir(modules), "--exclude=@anthropic-ai", "--exclude=opencode-*", "--exclude=node-linux-*", "-c", "node_modules")
	packages, err := tar.StdoutPipe()
	must(t, err)
	must(t, tar.Start())
	res, err := d.s.Stream(t.Context(), sandbox.ExecRequest{Argv: []string{"tar", "-C", "/workspace", "-x"}}, sandbox.Streams{Stdin: packages, Stdout: io.Discard, Stderr: os.Stderr})
	must(t, err)
	must(t, tar.Wait())
	if res.ExitCode != 0 {
		t.Fatalf("tar: %+v", res.ExecStatus)
	}
	enginetest.Put(t, d.s, node, "node")
	inspect := func(args ...string) string {
		return d.run(sandbox.ExecRequest{Env: map[string]string{"TMPDIR": "/workspace", "NO_COLOR": "1"}},
			append([]string{"/workspace/node", "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js", "--cli", "/.workcell/workcell-guest", "mcp"}, args...)...)
	}
	var list struct{ Tools []struct{ Name string } }
	must(t, json.Unmarshal([]byte(inspect("--method", "tools/list", "--strict")), &list))
	if len(list.Tools) != 1 || list.Tools[0].Name != "orders_lookup" {
		t.Errorf("it lists %+v", list)
	}
	if out := inspect("--method", "tools/call", "--tool-name", "orders_lookup", "--tool-arg", "id=order-42"); !strings.Contains(out, `"total": 12.5`) {
		t.Errorf("it was answered %s", out)
	}
	if out := inspect("--method", "resources/read", "--uri", "tools://INDEX.md"); !strings.Contains(out, "orders.lookup(id)") {
		t.Errorf("it reads %s", out)
	}
}
