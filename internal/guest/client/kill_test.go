//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// sleepers returns the number of processes on this host sleeping for exactly this many seconds. The duration identifies
// them.
func sleepers(t testing.TB, name string) int {
	t.Helper()
	n := 0
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/cmdline")
		if err == nil && bytes.Contains(b, []byte("sleep\x00"+name+"\x00")) {
			n++
		}
	}
	return n
}

// sleepName returns a unique duration.
func sleepName(t testing.TB) string {
	n, err := strconv.ParseUint(newID()[:12], 16, 64)
	must(t, err)
	return strconv.FormatUint(1000000+n%8999999, 10)
}

// kill kills a command's process tree.
func kill(t testing.TB, c *client.Conn, id string) {
	t.Helper()
	_, err := c.Kill(testContext(t), wire.KillRequest{ExecID: id})
	must(t, err)
}

// trees contains scripts leaving processes behind in all known ways. NAME is replaced by the duration of their sleep.
var trees = map[string]string{
	"plain":             `sleep NAME`,
	"background":        `sleep NAME & sleep NAME & wait`,
	"grandchild":        `sh -c 'sh -c "sleep NAME; :"; :'; :`,
	"setsid":            `setsid sleep NAME & sleep NAME`,
	"double fork":       `(setsid sh -c 'sleep NAME & exit' &) ; sleep NAME`,
	"nohup":             `nohup sleep NAME >/dev/null 2>&1 & sleep NAME`,
	"no environment":    `env -i setsid sleep NAME & sleep NAME`,
	"orphan without":    `(env -i setsid sh -c 'sleep NAME >/dev/null 2>&1 </dev/null & exit' &) ; sleep NAME`,
	"ignores TERM":      `trap '' TERM INT HUP; sleep NAME & while :; do sleep NAME; done`,
	"stopped":           `sh -c 'sleep NAME & kill -STOP $$; :' & sleep NAME`,
	"spawns on TERM":    `trap 'setsid sleep NAME &' TERM; while :; do sleep NAME & wait; done`,
	"closes its output": `exec >/dev/null 2>&1 </dev/null; sleep NAME`,
}

// TestTimeoutEndsTheTree verifies that a timeout and a kill leave no process of any tree.
func TestTimeoutEndsTheTree(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for name, script := range trees {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := sleepName(t)
			req := sh("echo begun; " + strings.ReplaceAll(script, "NAME", id))
			req.TimeoutMillis, req.GraceMillis = 3000, 500
			res := mustRun(t, c, req)
			if res.State != wire.ExecTimedOut || !strings.HasPrefix(string(res.Stdout.Head), "begun\n") {
				t.Errorf("got %v", brief(res))
			}
			killed := sh(strings.ReplaceAll(script, "NAME", id))
			killed.YieldMillis, killed.GraceMillis = 300, 300
			if n := sleepers(t, id); n != 0 {
				t.Errorf("%d processes are left", n)
			}
			mustRun(t, c, killed)
			eventually(t, "there is something to kill", func() bool { return sleepers(t, id) > 0 })
			for range 2 { // the second call has no effect
				st, err := c.Kill(testContext(t), wire.KillRequest{ExecID: killed.ExecID})
				if n := sleepers(t, id); err != nil || st.State != wire.ExecKilled || n != 0 {
					t.Errorf("got %+v, %v, %d processes are left", st, err, n)
				}
			}
		})
	}
}

// TestDeadLeader verifies that a process whose first thread exited is killed together with the command.
func TestDeadLeader(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := sh("")
	req.Argv = []string{"python3", "-c", `
import ctypes, platform, threading, time
def beat():
    while True:
        open("beat", "a").write("x")
        time.sleep(0.02)
threading.Thread(target=beat).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)`}
	req.TimeoutMillis, req.GraceMillis = 2000, 300
	if res := mustRun(t, c, req); res.State != wire.ExecTimedOut {
		t.Errorf("got %v", brief(res))
	}
	res := mustRun(t, c, sh("stat -c %s beat; sleep 0.5; stat -c %s beat"))
	if sizes := strings.Fields(string(res.Stdout.Head)); len(sizes) != 2 || sizes[0] != sizes[1] {
		t.Errorf("it runs on: %q", sizes)
	}
}

// eventually waits until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

func TestRecordedExecOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := sh("until [ -e left ]; do sleep 0.05; done; echo done")
	ctx, cancel := context.WithCancel(testContext(t))
	ended := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, req)
		ended <- err
	}()
	eventually(t, "it runs", func() bool {
		_, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: req.ExecID})
		return err == nil
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if _, err := c.Run(ctx, sh("true")); !errors.Is(err, context.Canceled) {
		t.Errorf("one that is over before: %v", err)
	}
	mustRun(t, c, sh("touch left"))
	st, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: req.ExecID, WaitMillis: -1})
	if err != nil || st.State != wire.ExecCompleted || st.StdoutBytes != 5 {
		t.Errorf("got %+v, %v", st, err)
	}
}

func TestSignals(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	ctx := testContext(t)
	id := ""
	for name, want := range map[string]string{"INT": "SIGINT", "SIGTERM": "SIGTERM", "hup": "SIGHUP", "KILL": "SIGKILL"} {
		req := sh("exec sleep 60")
		req.YieldMillis = 200
		mustRun(t, c, req)
		id = req.ExecID
		st, err := c.Kill(ctx, wire.KillRequest{ExecID: id, Signal: name})
		if err == nil && st.State == wire.ExecRunning {
			var res wire.RunResult
			res, err = c.Wait(ctx, wire.WaitRequest{ExecID: id, WaitMillis: -1})
			st = res.ExecStatus
		}
		if err != nil || st.Signal != want || st.State != wire.ExecKilled {
			t.Errorf("%s: got %+v, %v", name, st, err)
		}
	}
	for _, bad := range []string{"", "9", "SIGRTMIN", "NOPE", "SIG", "0"} {
		if _, err := c.Kill(ctx, wire.KillRequest{ExecID: id, Signal: bad}); bad != "" && codeOf(err) != wire.CodeInvalid {
			t.Errorf("signal %q: %v", bad, err)
		}
	}
	if st, err := c.Kill(ctx, wire.KillRequest{ExecID: id, Signal: "TERM"}); err != nil || st.State != wire.ExecKilled {
		t.Errorf("an ended exec: %+v, %v", st, err)
	}
	fails(t, "unknown exec", second(c.Kill(ctx, wire.KillRequest{ExecID: "unknown"})), wire.CodeNotFound)
}

func TestBackgroundChildKeepsOutputOpen(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	id := sleepName(t)
	req := sh("(until [ -e go ]; do sleep 0.05; done; echo late; exec sleep " + id + ") & echo early")
	res := mustRun(t, c, req)
	if res.State != wire.ExecCompleted || !res.Leaked || string(res.Stdout.Head) != "early\n" {
		t.Errorf("got %v", brief(res))
	}
	// The child process keeps running, and its writes do not end it.
	ctx := testContext(t)
	mustPut(t, c, "go", nil)
	eventually(t, "late output is recorded", func() bool {
		r, err := c.Read(ctx, wire.ReadRequest{ExecID: req.ExecID})
		return err == nil && strings.HasSuffix(joined(r.Chunks), "late\n")
	})
	eventually(t, "the background child runs on", func() bool { return sleepers(t, id) != 0 })
	st, err := c.Kill(ctx, wire.KillRequest{ExecID: req.ExecID})
	if err != nil || st.State != wire.ExecCompleted || sleepers(t, id) != 0 {
		t.Errorf("killing what is left: %+v, %v", st, err)
	}
}

// TestOutputHeldByAnotherCommand verifies that a process of another command with the output open does not count as left
// over from this command.
func TestOutputHeldByAnotherCommand(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	holder := sh("until [ -s pid ]; do sleep 0.02; done; exec 3>/proc/$(cat pid)/fd/1 && touch held; exec sleep 1000")
	background(t, c, holder)
	res := mustRun(t, c, sh("echo $$ >new; mv new pid; until [ -e held ]; do sleep 0.02; done; echo done"))
	if res.State != wire.ExecCompleted || res.Leaked || string(res.Stdout.Head) != "done\n" {
		t.Errorf("got %v", brief(res))
	}
}

func joined(chunks []wire.Chunk) string {
	var b strings.Builder
	for _, ch := range chunks {
		b.Write(ch.Data)
	}
	return b.String()
}

// TestKillAll verifies that KillAll kills running commands and remaining processes of exited commands.
func TestKillAll(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	id := sleepName(t)
	mustRun(t, c, sh("setsid sh -c 'while :; do sleep "+id+" & sleep 0.01; done' >/dev/null 2>&1 </dev/null &"))
	eventually(t, "something is left behind", func() bool { return sleepers(t, id) > 3 })
	running := sh("sleep " + id)
	background(t, c, running)
	killed, err := c.KillAll(testContext(t))
	if err != nil || len(killed) != 1 || killed[0].ExecID != running.ExecID || killed[0].State != wire.ExecKilled {
		t.Errorf("got %+v, %v", killed, err)
	}
	if n := sleepers(t, id); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}
