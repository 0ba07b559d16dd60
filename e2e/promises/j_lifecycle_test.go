package promises

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// TestJ1OneSandbox has ten agents of one run open its sandbox a hundred times at once.
func TestJ1OneSandbox(t *testing.T) {
	t.Parallel()
	m := newManager(t, w.driver, session.Options{})
	p := &tools.Plugin{Manager: m}
	run := session.Run{Namespace: session.NamespaceWorkflow, ID: session.NewRunID()}
	var mu sync.Mutex
	ids, created := map[any]int{}, 0
	var wg sync.WaitGroup
	var agents []*box
	for range 10 {
		b, err := agentOf(t.Context(), p, run, pythonBox())
		must(t, err)
		agents = append(agents, b)
	}
	for i := range 100 {
		b := agents[i%10]
		wg.Go(func() {
			out, err := b.raw(t.Context(), toolspec.ToolOpen, obj{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || code(out) != "" {
				t.Error(err, out)
			}
			if ids[out["sandbox_id"]]++; out["created"] == true {
				created++
			}
		})
	}
	wg.Wait()
	if len(ids) != 1 || created != 1 {
		t.Errorf("ids %v, created %d times", ids, created)
	}
	// What else is there is what one sandbox needs: a second one shows as more of it.
	one := newManager(t, w.driver, session.Options{})
	_, _, err := one.Open(t.Context(), session.UserKey("x"), session.Request{Image: pythonImage})
	must(t, err)
	eventually(t, "there is as much as of one sandbox", func() bool {
		list, err1 := w.engine.left(t.Context(), m.Instance())
		want, err2 := w.engine.left(t.Context(), one.Instance())
		return err1 == nil && err2 == nil && len(list) == len(want) && len(list) > 0
	})
	must(t, m.CloseScope(t.Context(), run.Scope()))
	nothingLeft(t, m.Instance())
}

// TestJ3CloseUnderLoad closes a sandbox under every kind of call.
func TestJ3CloseUnderLoad(t *testing.T) {
	t.Parallel()
	m := newManager(t, w.driver, session.Options{})
	b, err := openBox(t.Context(), m, &tools.Plugin{Manager: m}, pythonBox())
	must(t, err)
	b.sh(t, "mkdir -p tree && cd tree && touch $(seq 1 900) && head -c 30M /dev/zero > big")
	endless, feed := io.Pipe()
	defer feed.Close()
	waited := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"sleep", "600"}, "stream": true, "timeout_seconds": 1200})["exec_id"]
	calls := map[string]func() (obj, error){
		toolspec.ToolExec: func() (obj, error) {
			return b.raw(t.Context(), toolspec.ToolExec, obj{"cmd": []string{"sleep", "600"}, "yield_ms": 600_000})
		},
		toolspec.ToolExecWait: func() (obj, error) {
			return b.raw(t.Context(), toolspec.ToolExecWait, obj{"exec_id": waited, "timeout_seconds": 600})
		},
		toolspec.ToolFSList: func() (obj, error) { return b.raw(t.Context(), toolspec.ToolFSList, obj{"recursive": true}) },
		toolspec.ToolFSRead: func() (obj, error) {
			return b.raw(t.Context(), toolspec.ToolFSRead, obj{"path": "tree/big", "max_bytes": 256 << 10})
		},
		toolspec.ToolFSWrite: func() (obj, error) {
			return b.raw(t.Context(), toolspec.ToolFSWrite, obj{"path": "w", "contents": strings.Repeat("x", 256<<10), "overwrite": true})
		},
		"Stream": func() (obj, error) {
			_, err := b.s.Stream(t.Context(), session.ExecRequest{Command: "cat; sleep 600"}, session.Streams{Stdin: endless})
			return nil, err
		},
		"WriteFile": func() (obj, error) {
			_, err := b.s.WriteFile(t.Context(), "endless", endless, session.WriteFileOptions{})
			return nil, err
		},
	}
	var wg, started sync.WaitGroup
	var closed time.Time
	for name, call := range calls {
		started.Add(1)
		wg.Go(func() {
			time.AfterFunc(time.Second, started.Done)
			for {
				out, err := call()
				if err == nil && code(out) == "" {
					continue // a short call: again, until the close meets one
				}
				if !errors.Is(err, backend.ErrClosed) && code(out) != toolspec.CodeClosed {
					t.Errorf("%s: %v, %v, want it closed", name, out, err)
				}
				return
			}
		})
	}
	started.Wait()
	closed = time.Now()
	must(t, m.CloseScope(t.Context(), b.run.Scope()))
	wg.Wait()
	within(t, 5*time.Second, closed)
	nothingLeft(t, m.Instance())
}

func TestJ4CloseTwice(t *testing.T) {
	t.Parallel()
	m := newManager(t, w.driver, session.Options{})
	b, err := openBox(t.Context(), m, &tools.Plugin{Manager: m}, pythonBox())
	must(t, err)
	b.ok(t, toolspec.ToolClose, obj{"delete_workspace": true})
	b.ok(t, toolspec.ToolClose, obj{"delete_workspace": true})
	for range 2 {
		must(t, b.s.Close(t.Context()))
		must(t, m.CloseSession(t.Context(), b.s.Key(), session.CloseOptions{}))
		must(t, m.CloseSession(t.Context(), session.UserKey("never-opened"), session.CloseOptions{}))
		must(t, m.CloseScope(t.Context(), b.run.Scope()))
		must(t, m.CloseScope(t.Context(), session.Scope{Namespace: "workflow", ID: "never"}))
	}
	must(t, m.Close(t.Context()))
	must(t, m.Close(t.Context()))
	must(t, b.s.Close(t.Context()))
}

// TestJ4GivenBack leaves processes behind finished commands: one that holds their output, one that does not, one in a
// session of its own. Closing ends them, in a sandbox that stays as well.
func TestJ4GivenBack(t *testing.T) {
	t.Parallel()
	b := newBox(t, pythonBox())
	for _, command := range []string{
		"sleep 100001 & echo ok", "sleep 100001 >/dev/null 2>&1 &", "setsid sleep 100001 >/dev/null 2>&1 </dev/null &",
	} {
		b.ok(t, toolspec.ToolExec, obj{"command": command})
	}
	b.ok(t, toolspec.ToolClose, obj{})
	b.ok(t, toolspec.ToolOpen, obj{})
	const sleepers = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null | grep -c '^sleep 10000[1] '"
	if out := b.ok(t, toolspec.ToolExec, obj{"command": sleepers}); out["stdout"] != "0\n" {
		t.Errorf("a sandbox that was given back runs %v of what was left in it", out["stdout"])
	}
}

// TestJ5CancelledOpen cancels an open at each step of it.
func TestJ5CancelledOpen(t *testing.T) {
	t.Parallel()
	e, ok := w.engine.(served)
	if !ok { // no steps to see from outside: at many moments
		for i := range 16 {
			cancelledOpen(t, w.driver, pythonImage, func(cancel func()) <-chan struct{} {
				time.AfterFunc(time.Duration(i)*time.Millisecond, cancel)
				return nil
			})
		}
		return
	}
	reg := newRegistry(t)
	ref := reg.push(t, "acme/cancelled:1")
	for name, at := range e.steps() {
		for _, late := range []time.Duration{0, 20 * time.Millisecond} {
			t.Run(name+" "+late.String(), func(t *testing.T) {
				t.Parallel()
				p := e.front(t)
				image := pythonImage
				if name == "pull" {
					image = ref
				}
				cancelledOpen(t, newDriver(t, connection{address: p.address}), image, func(cancel func()) <-chan struct{} {
					met := make(chan struct{})
					var once sync.Once
					p.on(func(r *http.Request) {
						if at(r) {
							once.Do(func() {
								close(met)
								time.AfterFunc(late, cancel)
							})
						}
					})
					return met
				})
			})
		}
	}
}

// cancelledOpen opens a sandbox through a tool. arm is given what cancels that, and gives what is closed when the moment
// to do so has come, or nil.
func cancelledOpen(t *testing.T, driver backend.SandboxBackend, image string, arm func(cancel func()) <-chan struct{}) {
	t.Helper()
	m := newManager(t, driver, session.Options{MaxSandboxes: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b, err := agentOf(t.Context(), &tools.Plugin{Manager: m}, session.Run{Namespace: "agent", ID: session.NewRunID()},
		tools.Sandbox{Mode: "code", Image: image})
	must(t, err)
	met := arm(cancel)
	out, err := b.raw(ctx, toolspec.ToolOpen, obj{})
	if met != nil {
		select {
		case <-met:
		default:
			t.Fatalf("the step was never reached: %v, %v", out, err)
		}
	}
	switch {
	case err == nil && code(out) == "": // it was done before the cancellation came through
		must(t, m.CloseScope(t.Context(), b.run.Scope()))
	case !errors.Is(err, context.Canceled):
		t.Errorf("sandbox_open: %v, %v", out, err)
	}
	nothingLeft(t, m.Instance())
	// Its place is free again: what is wrong with the next one is its image.
	eventually(t, "its place is free", func() bool {
		_, _, err := m.Open(t.Context(), session.UserKey("next"), session.Request{Image: "workcell-promises/none:1", Pull: backend.PullNever})
		return errors.Is(err, backend.ErrImage) || errors.Is(err, backend.ErrUnsupported)
	})
}

type agents func(ctx context.Context) (workflow.AgentOutput, error)

func (f agents) RunAgent(ctx context.Context, _ string, _ map[string]any) (workflow.AgentOutput, error) {
	return f(ctx)
}

// TestJ8RunEnds ends workflow runs in every way; each takes its own sandboxes along and no others.
func TestJ8RunEnds(t *testing.T) {
	t.Parallel()
	m := newManager(t, w.driver, session.Options{})
	other, _, err := m.Open(t.Context(), session.WorkflowKey(session.NewRunID(), session.DefaultName), request())
	must(t, err)
	wf, err := workflow.Parse("w.yaml", []byte(`id: w
sandbox: {image: "`+debianImage+`"}
steps:
  - {id: first, type: exec, command: "echo x > f"}
  - {id: own, type: exec, command: "echo y > g", sandbox: other}
  - {id: agent, type: agent, agent: any}
  - {id: last, type: exec, command: "test $(cat f) = x"}
`), nil)
	must(t, err)
	for name, c := range map[string]struct {
		agent   func(ctx context.Context, cancel func()) error
		outcome workflow.Outcome
	}{
		"success": {func(context.Context, func()) error { return nil }, workflow.Succeeded},
		"failure": {func(context.Context, func()) error { return errors.New("no") }, workflow.Failed},
		"panic":   {func(context.Context, func()) error { panic("no") }, workflow.Failed},
		"cancel":  {func(ctx context.Context, cancel func()) error { cancel(); <-ctx.Done(); return ctx.Err() }, workflow.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			during := 0
			runner := agents(func(ctx context.Context) (workflow.AgentOutput, error) {
				run, _ := session.RunFromContext(ctx)
				during = len(m.InScope(run.Scope()))
				return workflow.AgentOutput{Text: "done"}, c.agent(ctx, cancel)
			})
			res, err := workflow.NewEngine(m, runner, nil).Run(ctx, wf, nil)
			if res == nil || res.Outcome != c.outcome || res.Cleanup != nil {
				t.Fatalf("%+v, %v", res, err)
			}
			if during != 2 {
				t.Errorf("the run had %d sandboxes", during)
			}
			list, err := w.driver.List(t.Context(), backend.Filter{Instance: m.Instance(), Run: res.RunID})
			if err != nil || len(list) != 0 {
				t.Errorf("left: %+v, %v", list, err)
			}
			if got, err := other.Exec(t.Context(), session.ExecRequest{Argv: []string{"echo", "alive"}}); err != nil || string(got.Stdout.Bytes()) != "alive\n" {
				t.Errorf("another run's sandbox: %+v, %v", got, err)
			}
		})
	}
}

// TestJ8CommandLine ends `workcell run` by Ctrl-C and by TERM.
func TestJ8CommandLine(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "w.yaml")
	must(t, os.WriteFile(file, []byte("id: w\nsandbox: {image: \""+debianImage+"\"}\nsteps:\n  - {id: wait, type: exec, command: \"echo started; sleep 600\"}\n"), 0o600))
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			instance := w.instance + session.NewID()
			cmd := command(t, w.stateDir(t, instance), nil, "run", file)
			must(t, cmd.Start())
			eventually(t, "the run's sandbox runs its command", func() bool {
				list, err := w.driver.List(t.Context(), backend.Filter{Instance: instance})
				if err != nil || len(list) != 1 {
					return false
				}
				n, err := w.engine.processes(t.Context(), list[0].ID)
				return err == nil && n > 1
			})
			must(t, cmd.Process.Signal(sig))
			_ = cmd.Wait() // its exit code is looked at
			if got := cmd.ProcessState.ExitCode(); got != 128+int(sig) {
				t.Errorf("exit code %d", got)
			}
			nothingLeft(t, instance)
		})
	}
}
