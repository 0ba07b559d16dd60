//go:build linux

package promises

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/clocktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// mcpServer is `workcell mcp` with a client.
type mcpServer struct {
	*mcp.ClientSession
	cmd *exec.Cmd
}

// startMCP starts an MCP server. The test must close it before the end of the test.
func startMCP(t *testing.T, cmd *exec.Cmd) *mcpServer {
	t.Helper()
	var stderr buffertest.Buffer
	cmd.Stderr = &stderr
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	cs, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: patience}, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	t.Cleanup(func() { _ = cs.Close() }) // after a failed test; otherwise already killed
	return &mcpServer{cs, cmd}
}

// ok calls a tool, which must succeed.
func (f *mcpServer) ok(t *testing.T, tool string, in obj) obj {
	t.Helper()
	res, err := f.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: in})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	out, _ := res.StructuredContent.(obj)
	if res.IsError || out == nil {
		t.Fatalf("%s: %v", tool, res.StructuredContent)
	}
	return out
}

// TestF12Clock changes the clock of the command while it has sandboxes: by an hour, back to an hour before the true
// time, and by a day. Commands end when their own timeout has passed. No sandbox is removed before or long after the
// timeout, whichever process runs the cleanup, with the true clock or another.
func TestF12Clock(t *testing.T) {
	t.Parallel()
	bin, err := w.cli()
	must(t, err)
	clock := clocktest.New(t, bin)
	gone := leaveIdle(t, bin)
	h := newHost(t)
	policy := filepath.Join(t.TempDir(), "guard.yaml")
	must(t, os.WriteFile(policy, []byte("limits: {exec_timeout: 1h}\n"), 0o600))
	f := startMCP(t, clock.Under(h.command(t, "mcp", "--image", debianImage, "--policy", policy)))
	worker := f.ok(t, toolspec.ToolOpen, nil)["sandbox_id"]
	in := func(tool string, in obj) obj { in["sandbox_id"] = worker; return f.ok(t, tool, in) }
	background := func(seconds int, line string) any {
		return in(toolspec.ToolExec, obj{"command": line, "timeout_seconds": seconds, "stream": true})["exec_id"]
	}
	long := background(3000, "until test -e go; do sleep 0.1; done")
	for i, by := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour} {
		short := background(2, "sleep 6000")
		clock.Set(by)
		idle := f.ok(t, toolspec.ToolOpen, obj{"session_key": fmt.Sprint("idle", i)})["sandbox_id"]
		h.has(t, i+2, idle, by)
		for whose, look := range map[string]*exec.Cmd{"true": h.command(t, "sandbox", "gc", "--yes", "-o", "json"),
			"same": clock.Under(h.command(t, "sandbox", "gc", "--yes", "-o", "json"))} {
			if out, err := garbage(look); err != nil || len(out) > 0 {
				t.Errorf("the clock is %v ahead: by the %s clock there is garbage: %v, %v", by, whose, out, err)
			}
		}
		if out := in(toolspec.ToolExecWait, obj{"exec_id": short, "timeout_seconds": 300}); out["status"] != "timed_out" {
			t.Errorf("the clock is %v ahead: a command that had 2 s: %v", by, out)
		}
		if out := in(toolspec.ToolExecWait, obj{"exec_id": long, "timeout_seconds": 1}); out["done"] != false {
			t.Errorf("the clock is %v ahead: a command that had 50 minutes: %v", by, out)
		}
	}
	h.orphan(t)
	h.has(t, 4, worker, 0)
	in(toolspec.ToolExec, obj{"cmd": []string{"touch", "go"}})
	if out := in(toolspec.ToolExecWait, obj{"exec_id": long, "timeout_seconds": 300}); out["status"] != "completed" {
		t.Errorf("a command that had 50 minutes: %v", out)
	}
	must(t, f.Close())
	gone()
}

// garbage returns the ids of the sandboxes removed by gc. It ignores guest agents of other versions on the engine.
func garbage(gc *exec.Cmd) ([]string, error) {
	var list []struct{ ID, Key string }
	out, err := gc.Output()
	if err == nil {
		err = json.Unmarshal(out, &list)
	}
	var ids []string
	for _, g := range list {
		if g.Key != "" {
			ids = append(ids, g.ID)
		}
	}
	return ids, err
}

// leaveIdle leaves a sandbox whose creation time is long after its last use according to the server, because the clock
// was set back in between. gone waits until the sandbox is removed. The wrong times must not delay the removal.
func leaveIdle(t *testing.T, bin string) (gone func()) {
	t.Helper()
	clock := clocktest.New(t, bin)
	clock.Set(time.Hour)
	h := newHost(t)
	f := startMCP(t, clock.Under(h.command(t, "mcp", "--image", debianImage, "--idle-timeout", "45s")))
	h.has(t, 1, f.ok(t, toolspec.ToolOpen, nil)["sandbox_id"], time.Hour)
	clock.Set(-time.Hour)
	f.ok(t, toolspec.ToolExec, obj{"cmd": []string{"true"}})
	return func() {
		h.comesTo(t, 0)
		must(t, f.Close())
	}
}

// host is a state directory of the command, and the instance id of the sandboxes.
type host struct{ state, instance string }

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{instance: w.instance + record.NewID()}
	h.state = w.stateDir(t, h.instance)
	t.Cleanup(func() { nothingLeft(t, h.instance) })
	return h
}

func (h *host) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return command(t, h.state, nil, args...)
}

// has verifies the number of running sandboxes. A sandbox was created with a clock ahead.
func (h *host) has(t *testing.T, n int, id any, ahead time.Duration) {
	t.Helper()
	var list []struct {
		ID, State string
		Created   time.Time
	}
	out, err := h.command(t, "sandbox", "ls", "-o", "json").Output()
	must(t, errors.Join(err, json.Unmarshal(out, &list)))
	made := false
	for _, s := range list {
		if s.State != "running" {
			t.Errorf("it is %s, with a clock that is %v ahead: %s", s.State, ahead, out)
		}
		made = made || s.ID == id && time.Until(s.Created.Add(-ahead)).Abs() < 20*time.Minute
	}
	if len(list) != n || !made {
		t.Errorf("want %d sandboxes, and %v of them made by a clock that is %v ahead: %s", n, id, ahead, out)
	}
}

// orphan leaves a sandbox without a process, and waits until a process with tomorrow's clock has run the cleanup. It
// removes this sandbox, and it would remove others if it considered them expired. By the true clock, the sandbox has
// not expired yet.
func (h *host) orphan(t *testing.T) {
	t.Helper()
	before := h.sandboxes(t)
	f := startMCP(t, h.command(t, "mcp", "--image", debianImage))
	f.ok(t, toolspec.ToolOpen, nil)
	must(t, f.cmd.Process.Kill())
	_ = f.Close() // it was killed
	h.comesTo(t, before)
}

// comesTo waits until the reapers have left n sandboxes. They check once a minute.
func (h *host) comesTo(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(3*session.DefaultReapEvery + patience); h.sandboxes(t) != n; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there are still %d sandboxes", h.sandboxes(t))
		}
	}
}

func (h *host) sandboxes(t *testing.T) int {
	t.Helper()
	list, err := w.driver.List(t.Context(), backend.Filter{Instance: h.instance})
	must(t, err)
	return len(list)
}
