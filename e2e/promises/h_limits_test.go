package promises

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// eachLimited runs a test in small sandboxes of an ordinary user and of root.
func eachLimited(t *testing.T, limits frontmatter.Limits, f func(t *testing.T, b *box)) {
	t.Helper()
	for name, cfg := range map[string]tools.Sandbox{"user": pythonBox(), "root": rootBox()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Limits = limits
			b := newBox(t, cfg)
			f(t, b)
			b.alive(t)
			w.user.alive(t)
		})
	}
}

func TestH1Memory(t *testing.T) {
	t.Parallel()
	const hog = "b = []\nwhile True: b.append(b'x' * (1 << 20))"
	eachLimited(t, frontmatter.Limits{MemoryMB: 64}, func(t *testing.T, b *box) {
		for name, in := range map[string]obj{
			"directly": {"cmd": []string{"python3", "-c", hog}}, "below a shell": {"command": "python3 -c \"$HOG\"; exit $?", "env": obj{"HOG": hog}},
		} {
			out := b.ok(t, toolspec.ToolExec, in)
			if out["status"] != "oom_killed" || out["exit_code"] != 137.0 || !strings.Contains(out["stderr"].(string), "64 MiB") {
				t.Errorf("%s: %v", name, out)
			}
			b.alive(t)
		}
		// Files in memory count as well. Even all of them leave enough to go on with.
		for _, dir := range []string{"/dev/shm", "/tmp"} {
			out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"dd", "if=/dev/zero", "of=" + dir + "/fill", "bs=1M", "count=200"}})
			if out["exit_code"] != 1.0 || !strings.Contains(out["stderr"].(string), "No space left") {
				t.Errorf("200 MiB in %s: %v", dir, out)
			}
		}
		b.sh(t, "rm /dev/shm/fill /tmp/fill")
		// Dying of a signal of one's own is something else.
		if out := b.ok(t, toolspec.ToolExec, obj{"command": "kill -9 $$"}); out["status"] != "completed" || out["signal"] != "SIGKILL" {
			t.Errorf("kill -9: %v", out)
		}
	})
}

func TestH2Processes(t *testing.T) {
	t.Parallel()
	const pids, ours = 64, 20 // the guest's own come on top
	eachLimited(t, frontmatter.Limits{PIDs: pids}, func(t *testing.T, b *box) {
		for name, argv := range map[string][]string{
			"forks": {"python3", "-c", program(t, "forks.py")}, "threads": {"python3", "-c", program(t, "threads.py")},
			"shell": {"bash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 60"},
		} {
			met := map[string]string{"forks": "Resource temporarily unavailable", "threads": "can't start new thread"}[name]
			// A busy machine may not get there in two seconds.
			seconds := 2
			for !bomb(t, b, argv, seconds, met, pids+ours) {
				if seconds *= 6; seconds > 100 {
					t.Fatalf("%s: the limit was never met", name)
				}
			}
			b.alive(t)
			eventually(t, "no process of "+name+" is left", func() bool { return processes(t, b) <= 2 })
		}
	})
}

// bomb runs a command that wants ever more until its time is over, and tells whether it said that it met its limit.
func bomb(t *testing.T, b *box, argv []string, seconds int, met string, limit int) bool {
	t.Helper()
	began := time.Now()
	id := b.ok(t, toolspec.ToolExec, obj{"cmd": argv, "timeout_seconds": seconds, "stream": true})["exec_id"]
	for time.Since(began) < time.Duration(seconds)*time.Second*3/4 {
		if most := processes(t, b); most > limit {
			t.Errorf("%.80v: the engine's machine had %d processes of the sandbox", argv, most)
		}
		time.Sleep(100 * time.Millisecond)
	}
	// A caller that wants a process meanwhile gets one or is told why not.
	out := b.call(t, toolspec.ToolExec, obj{"cmd": []string{"true"}, "timeout_seconds": 1})
	if code(out) != "" && code(out) != toolspec.CodeCapacity {
		t.Errorf("%.80v: a command beside it: %v", argv, out)
	}
	out = b.ok(t, toolspec.ToolExecWait, obj{"exec_id": id, "timeout_seconds": 600})
	if out["done"] != true {
		t.Fatalf("%.80v: %v", argv, out)
	}
	within(t, time.Duration(seconds+5)*time.Second, began)
	return strings.Contains(replay(t, b, id), met)
}

// processes counts the processes of a sandbox from outside. Threads do not count as such on the engine's machine.
func processes(t *testing.T, b *box) int {
	t.Helper()
	n, err := w.engine.processes(t.Context(), b.s.Info().EngineID)
	must(t, err)
	return n
}

// TestH8Capacity opens more sandboxes than there may be.
func TestH8Capacity(t *testing.T) {
	t.Parallel()
	const most, asked = 3, 30
	m := newManager(t, w.driver, session.Options{MaxSandboxes: most})
	p := &tools.Plugin{Manager: m}
	var mu sync.Mutex
	got := map[toolspec.Code]int{}
	var open []*box
	var wg sync.WaitGroup
	for range asked {
		wg.Go(func() {
			b, err := agentOf(t.Context(), p, session.Run{Namespace: session.NamespaceAgent, ID: session.NewRunID()}, pythonBox())
			if err != nil {
				t.Error(err)
				return
			}
			began := time.Now()
			out, err := b.raw(t.Context(), toolspec.ToolOpen, obj{})
			if err != nil {
				t.Error(err)
				return
			}
			if code(out) == toolspec.CodeCapacity {
				within(t, time.Second, began)
			}
			mu.Lock()
			defer mu.Unlock()
			if got[code(out)]++; code(out) == "" {
				open = append(open, b)
			}
		})
	}
	wg.Wait()
	if got[""] != most || got[toolspec.CodeCapacity] != asked-most {
		t.Errorf("outcomes %v", got)
	}
	list, err := m.List(t.Context())
	if must(t, err); len(list) != most {
		t.Errorf("%d sandboxes on the engine", len(list))
	}
	// A place that was given back can be taken again.
	must(t, m.CloseScope(context.Background(), open[0].run.Scope()))
	if _, _, err := m.Open(t.Context(), session.UserKey("next"), request()); err != nil {
		t.Error(err)
	}
	if _, _, err := m.Open(t.Context(), session.UserKey("one-more"), request()); !errors.Is(err, backend.ErrCapacity) {
		t.Errorf("one more: %v", err)
	}
}
