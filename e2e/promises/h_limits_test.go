package promises

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// eachLimited runs a test in small sandboxes of an ordinary user and of root.
func eachLimited(t *testing.T, limits frontmatter.Limits, f func(t *testing.T, b *sandbox)) {
	t.Helper()
	for name, cfg := range map[string]tools.Sandbox{"user": pythonSandbox(), "root": rootSandbox()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Limits = limits
			b := newSandbox(t, cfg)
			f(t, b)
			b.alive(t)
			w.user.alive(t)
		})
	}
}

// TestH1Memory: a command that takes too much memory is killed and told why, and so is none that dies of another signal.
func TestH1Memory(t *testing.T) {
	t.Parallel()
	const hog = "b = []\nwhile True: b.append(b'x' * (1 << 20))"
	eachLimited(t, frontmatter.Limits{MemoryMB: 64}, func(t *testing.T, b *sandbox) {
		for name, in := range map[string]obj{
			"directly": {"cmd": []string{"python3", "-c", hog}}, "below a shell": {"command": "python3 -c \"$HOG\"; exit $?", "env": obj{"HOG": hog}},
		} {
			out := b.ok(t, tools.ToolExec, in)
			if out["status"] != "oom_killed" || out["exit_code"] != 137.0 || !strings.Contains(out["stderr"].(string), "64 MiB") {
				t.Errorf("%s: %v", name, out)
			}
			b.alive(t)
		}
		// Files in memory count as well. Even all of them leave enough to continue with.
		for _, dir := range []string{"/dev/shm", "/tmp"} {
			out := b.ok(t, tools.ToolExec, obj{"cmd": []string{"dd", "if=/dev/zero", "of=" + dir + "/fill", "bs=1M", "count=200"}})
			if out["exit_code"] != 1.0 || !strings.Contains(out["stderr"].(string), "No space left") {
				t.Errorf("200 MiB in %s: %v", dir, out)
			}
		}
		b.sh(t, "rm /dev/shm/fill /tmp/fill")
		// Dying of a signal of one's own is something else.
		if out := b.ok(t, tools.ToolExec, obj{"command": "kill -9 $$"}); out["status"] != "completed" || out["signal"] != "SIGKILL" {
			t.Errorf("kill -9: %v", out)
		}
	})
}

// TestH2Processes: however a command makes processes or threads, their number is bounded, and none is left of it.
func TestH2Processes(t *testing.T) {
	t.Parallel()
	const pids, ours = 64, 20 // the guest's own come on top
	eachLimited(t, frontmatter.Limits{PIDs: pids}, func(t *testing.T, b *sandbox) {
		count := func() int {
			list, err := processes(t.Context(), b.s.Info().EngineID)
			must(t, err)
			return len(list)
		}
		for name, argv := range map[string][]string{
			"forks": {"python3", "-c", program(t, "forks.py")}, "threads": {"python3", "-c", program(t, "threads.py")},
			"shell": {"bash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 60"},
		} {
			met := map[string]string{"forks": "Resource temporarily unavailable", "threads": "can't start new thread"}[name]
			for seconds := 2; ; seconds *= 6 { // a busy machine may not get there in two seconds
				id := b.ok(t, tools.ToolExec, obj{"cmd": argv, "timeout_seconds": seconds, "stream": true})["exec_id"]
				for began := time.Now(); time.Since(began) < time.Duration(seconds)*time.Second*3/4; time.Sleep(100 * time.Millisecond) {
					if most := count(); most > pids+ours {
						t.Errorf("%s: the machine had %d processes of the sandbox", name, most)
					}
				}
				// A caller that wants a process meanwhile gets one or is told why not.
				out := b.call(t, tools.ToolExec, obj{"cmd": []string{"true"}, "timeout_seconds": 1})
				if code(out) != "" && code(out) != tools.CodeCapacity {
					t.Errorf("%s: a command beside it: %v", name, out)
				}
				if out := b.ok(t, tools.ToolExecWait, obj{"exec_id": id, "timeout_seconds": 200}); out["done"] != true {
					t.Fatalf("%s: %v", name, out)
				}
				if strings.Contains(replay(t, b, id), met) {
					break
				}
				if seconds > 20 {
					t.Fatalf("%s: the limit was never met", name)
				}
			}
			b.alive(t)
			eventually(t, "no process of "+name+" is left", func() bool { return count() <= 2 })
		}
	})
}

// TestH8Capacity opens more sandboxes than there may be at a time: those beyond it are refused, with nothing left of them.
func TestH8Capacity(t *testing.T) {
	t.Parallel()
	const most, asked = 3, 30
	m := newManager(t, w.driver, session.Options{MaxSandboxes: most})
	p := &tools.Plugin{Manager: m}
	var mu sync.Mutex
	got := map[tools.Code]int{}
	var open []*sandbox
	var wg sync.WaitGroup
	for range asked {
		wg.Go(func() {
			b, err := agentOf(t.Context(), p, session.Run{Namespace: session.NamespaceAgent, ID: session.NewRunID()}, pythonSandbox())
			if err != nil {
				t.Error(err)
				return
			}
			out, err := b.raw(t.Context(), tools.ToolOpen, obj{})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if got[code(out)]++; code(out) == "" {
				open = append(open, b)
			}
		})
	}
	wg.Wait()
	if got[""] != most || got[tools.CodeCapacity] != asked-most {
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

// TestH5Descriptors: while processes of a sandbox hold all the descriptors that a command may open, and all that their user
// can, commands and file tools work, and so do other sandboxes.
func TestH5Descriptors(t *testing.T) {
	t.Parallel()
	b := newSandbox(t, pythonSandbox())
	limit, err := strconv.Atoi(strings.TrimSpace(b.sh(t, "ulimit -Hn")))
	must(t, err)
	kinds := []string{"files", "epoll"}
	if w.name != "local" { // where the kernel would count them among those of the machine's root
		kinds = append(kinds, "inotify")
	}
	for _, kind := range kinds {
		n, why, _ := strings.Cut(strings.TrimSpace(b.background(t, "descriptors.py", kind)), " ")
		had, err := strconv.Atoi(n)
		if must(t, err); why != "EMFILE" || had > limit || kind != "inotify" && had < limit-100 {
			t.Errorf("%s: %d of %d, then %s", kind, had, limit, why)
		}
		b.alive(t)
	}
	b.ok(t, tools.ToolFSWrite, obj{"path": "f", "contents": "there"})
	if got := contents(t, b.ok(t, tools.ToolFSRead, obj{"path": "f"})); string(got) != "there" {
		t.Errorf("a file beside them holds %q", got)
	}
	newSandbox(t, pythonSandbox()).python(t, "descriptors.py", "files", "0")
}

// TestH6Spin keeps every processor busy from several sandboxes. Others are made, used and removed nevertheless.
func TestH6Spin(t *testing.T) {
	t.Parallel()
	var spinning []*sandbox
	for range 3 {
		b := newSandbox(t, pythonSandbox())
		b.background(t, "spin.py", strconv.Itoa(2*runtime.NumCPU()))
		spinning = append(spinning, b)
	}
	m := newManager(t, w.driver, session.Options{})
	for i := range 20 {
		_, err := w.user.s.Exec(t.Context(), session.ExecRequest{Argv: []string{"true"}})
		must(t, err)
		if i%5 == 0 {
			key := session.WorkflowKey(session.NewRunID(), session.DefaultName)
			_, _, err := m.Open(t.Context(), key, request())
			must(t, err)
			must(t, m.CloseScope(t.Context(), key.Scope()))
		}
	}
	for _, b := range spinning {
		b.alive(t)
	}
}
