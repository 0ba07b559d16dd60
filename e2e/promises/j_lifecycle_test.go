//go:build linux

package promises

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// TestJ1OneSandbox: ten agents of one run that open its sandbox a hundred times at once have one.
func TestJ1OneSandbox(t *testing.T) {
	t.Parallel()
	m := newManager(t, w.driver, session.Options{})
	p := &tools.Plugin{Manager: m}
	run := session.Run{Namespace: session.NamespaceWorkflow, ID: session.NewRunID()}
	var mu sync.Mutex
	ids, created := map[any]int{}, 0
	var wg sync.WaitGroup
	for range 10 {
		b, err := agentOf(t.Context(), p, run, pythonSandbox())
		must(t, err)
		for range 10 {
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
	}
	wg.Wait()
	if len(ids) != 1 || created != 1 {
		t.Errorf("ids %v, created %d times", ids, created)
	}
	if list, err := m.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("sandboxes on the engine: %v, %v", list, err)
	}
	must(t, m.CloseScope(t.Context(), run.Scope()))
	nothingLeft(t, m.Instance())
}

// TestJ3CloseUnderLoad: closing a sandbox ends every kind of call under way.
func TestJ3CloseUnderLoad(t *testing.T) {
	t.Parallel()
	m := newManager(t, w.driver, session.Options{})
	b, err := openSandbox(t.Context(), m, &tools.Plugin{Manager: m}, pythonSandbox())
	must(t, err)
	b.sh(t, "mkdir -p tree && cd tree && touch $(seq 1 900) && head -c 30M /dev/zero > big")
	endless, feed := io.Pipe()
	defer feed.Close()
	waited := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"sleep", "6000"}, "stream": true, "timeout_seconds": 3600})["exec_id"]
	calls := map[string]func() (obj, error){}
	for tool, in := range map[string]obj{
		toolspec.ToolExec:     {"cmd": []string{"sleep", "6000"}, "yield_ms": 600_000, "timeout_seconds": 3600},
		toolspec.ToolExecWait: {"exec_id": waited, "timeout_seconds": 3600},
		toolspec.ToolFSList:   {"recursive": true},
		toolspec.ToolFSRead:   {"path": "tree/big", "max_bytes": 256 << 10},
		toolspec.ToolFSWrite:  {"path": "w", "contents": strings.Repeat("x", 256<<10), "overwrite": true},
	} {
		calls[tool] = func() (obj, error) { return b.raw(t.Context(), tool, in) }
	}
	calls["Stream"] = func() (obj, error) {
		_, err := b.s.Stream(t.Context(), session.ExecRequest{Command: "cat; sleep 6000"}, session.Streams{Stdin: endless})
		return nil, err
	}
	calls["WriteFile"] = func() (obj, error) {
		_, err := b.s.WriteFile(t.Context(), "endless", endless, session.WriteFileOptions{})
		return nil, err
	}
	var wg, started sync.WaitGroup
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
	must(t, m.CloseScope(t.Context(), b.run.Scope()))
	wg.Wait()
	nothingLeft(t, m.Instance())
}

// TestJ4GivenBack: closing ends what commands left behind, in a sandbox that stays as well, whether it holds their output, or
// has a session of its own.
func TestJ4GivenBack(t *testing.T) {
	t.Parallel()
	b := newSandbox(t, pythonSandbox())
	b.ok(t, toolspec.ToolExec, obj{"command": "sleep 100001 & sleep 100001 >/dev/null 2>&1 & setsid sleep 100001 >/dev/null 2>&1 </dev/null & echo ok"})
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
	for name, at := range e.steps() {
		for _, delay := range []time.Duration{0, 20 * time.Millisecond} {
			t.Run(name+" "+delay.String(), func(t *testing.T) {
				t.Parallel()
				p := e.proxy(t)
				image := pythonImage
				if name == "pull" { // of its own, which no other one brings
					image = reg.push(t, fmt.Sprintf("acme/cancelled:%d", delay))
				}
				cancelledOpen(t, newDriver(t, connection{address: p.address}), image, func(cancel func()) <-chan struct{} {
					met := make(chan struct{})
					var once sync.Once
					p.on(func(r *http.Request) {
						if at(r) {
							once.Do(func() {
								close(met)
								time.AfterFunc(delay, cancel)
							})
						}
					})
					return met
				})
			})
		}
	}
}

// cancelledOpen opens a sandbox through a tool. arm gets the function that cancels that, and returns what is closed when the
// moment to do so has come, or nil.
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

// TestJ8RunEnds: a workflow run that ends, in whichever way, takes its own sandboxes along and no others.
func TestJ8RunEnds(t *testing.T) {
	t.Parallel()
	m := newManager(t, w.driver, session.Options{})
	other, _, err := m.Open(t.Context(), session.WorkflowKey(session.NewRunID(), session.DefaultName), request())
	must(t, err)
	wf := parse(t, `
id: w
sandbox: {image: "IMAGE"}
steps:
  - {id: first, type: exec, command: "echo x > f"}
  - {id: own, type: exec, command: "echo y > g", sandbox: other}
  - {id: agent, type: agent, agent: any}
  - {id: last, type: exec, command: "test $(cat f) = x"}
`)
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
			runner := agent(func(ctx context.Context) error {
				run, _ := session.RunFromContext(ctx)
				during = len(m.InScope(run.Scope()))
				return c.agent(ctx, cancel)
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
			check(t, other, "echo alive", "alive\n")
		})
	}
}

// TestJ7Crowd: whatever many callers do in a sandbox at once, each gets its own results.
func TestJ7Crowd(t *testing.T) {
	t.Parallel()
	b := newSandbox(t, pythonSandbox())
	dir := b.dir(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			mine := fmt.Sprintf("caller %d\n", i)
			file := fmt.Sprintf("%s/%d", dir, i)
			call := func(tool string, in obj) obj {
				out, err := b.raw(context.WithoutCancel(t.Context()), tool, in)
				if err != nil || code(out) != "" {
					t.Errorf("%s %s: %v, %v", tool, file, out, err)
				}
				return out
			}
			call(toolspec.ToolFSWrite, obj{"path": file, "contents": mine})
			out := call(toolspec.ToolExec, obj{"command": "for i in 1 2 3 4 5 6 7 8 9; do cat " + file + "; cat >&2; done", "stdin": mine, "yield_ms": 600_000, "timeout_seconds": 600})
			if out["stdout"] != strings.Repeat(mine, 9) || out["stderr"] != mine || out["exit_code"] != 0.0 {
				t.Errorf("%s got %v", mine, out)
			}
			if got := call(toolspec.ToolFSRead, obj{"path": file}); got["contents"] != mine {
				t.Errorf("%s holds %v", file, got)
			}
			call(toolspec.ToolFSDelete, obj{"path": file})
		})
	}
	wg.Wait()
	if out := b.ok(t, toolspec.ToolFSList, obj{"path": dir}); len(out["entries"].([]any)) != 0 {
		t.Errorf("left: %v", out)
	}
}

// agent is any agent of a workflow.
type agent func(ctx context.Context) error

func (f agent) RunAgent(ctx context.Context, _ string, _ map[string]any) (workflow.AgentOutput, error) {
	return workflow.AgentOutput{Text: "done"}, f(ctx)
}
