package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
)

// saving is a backend whose snapshots and forks contain no files.
type saving struct {
	*memory.Backend
	mu    sync.Mutex
	saved map[string][]backend.Snapshot
	down  atomic.Bool // the engine does not answer
}

func (b *saving) List(ctx context.Context, f backend.Filter) ([]backend.Info, error) {
	if b.down.Load() {
		return nil, backend.ErrUnavailable
	}
	return b.Backend.List(ctx, f)
}

func (b *saving) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	if spec.Fork != nil && b.down.Load() {
		return backend.Info{}, backend.ErrUnavailable
	}
	spec.Fork = nil
	return b.Backend.Create(ctx, spec)
}

func (b *saving) Snapshot(_ context.Context, id, name string) (backend.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := backend.Snapshot{Name: name}
	b.saved[id] = append(b.saved[id], s)
	return s, nil
}

func (b *saving) Snapshots(_ context.Context, id string) ([]backend.Snapshot, backend.SnapshotMechanism, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.saved[id]), "", nil
}

func (b *saving) CopySnapshot(context.Context, string, backend.ForkOf) error { return nil }

func (b *saving) Rollback(context.Context, string, string) error { return nil }

func (b *saving) RemoveSnapshot(_ context.Context, id, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saved[id] = slices.DeleteFunc(b.saved[id], func(s backend.Snapshot) bool { return s.Name == name })
	return nil
}

// processes run workflows on one engine, with one store and one journal.
type processes struct {
	*saving
	opts session.Options
	cutJournal
	m   *session.Manager // manager of the latest process
	mu  sync.Mutex
	ran []string // sandboxes of the commands, in order
	env []string // environment of the latest command
}

func newProcesses(t *testing.T) *processes {
	b, err := memory.New(nil)
	checktest.Must(t, err)
	p := &processes{saving: &saving{Backend: b, saved: map[string][]backend.Snapshot{}}}
	p.opts = session.Options{Instance: "test", Store: record.NewMemoryStore()}
	b.Script(func(c memory.Command) (memory.Answer, bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ran, p.env = append(p.ran, c.Sandbox), c.Env
		if c.Line() == "bad" {
			return memory.Answer{ExitCode: 1}, true
		}
		return memory.Answer{}, true
	})
	return p
}

// start returns the engine of the next process, which dies after room journal entries. The caller must call end.
func (p *processes) start(t *testing.T, room int, a agents) (e *workflow.Engine, end func()) {
	t.Helper()
	m, err := session.NewManager(p.saving, &p.opts)
	checktest.Must(t, err)
	p.m, p.room = m, room
	end = func() { checktest.Must(t, m.Detach(context.Background())) }
	return workflow.NewEngine(m, a, &workflow.Options{Journal: &p.cutJournal}), end
}

// interrupt runs a workflow in a process that dies after room journal entries.
func (p *processes) interrupt(t *testing.T, room int, a agents, wf *workflow.Workflow) {
	t.Helper()
	e, end := p.start(t, room, a)
	stops(t, e, wf, workflow.ErrInterrupted)
	end()
}

// lose removes all sandboxes from the engine.
func (p *processes) lose(t *testing.T) {
	t.Helper()
	list, err := p.List(t.Context(), backend.Filter{})
	checktest.Must(t, err)
	for _, info := range list {
		checktest.Must(t, p.Remove(t.Context(), info.ID, backend.RemoveOptions{Volumes: true}))
	}
}

// TestSlowStep verifies that a run's sandbox outlives the idle timeout during a step that does not use it.
func TestSlowStep(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	p.opts.IdleTimeout, p.opts.ReapEvery = 50*time.Millisecond, 10*time.Millisecond
	e, end := p.start(t, -1, func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
		time.Sleep(time.Second)
		return workflow.AgentOutput{}, nil
	})
	defer end()
	wf := parse(t, `
sandbox: {image: a}
steps: [{id: a, type: exec, command: x}, {id: b, type: agent, agent: slow}, {id: c, type: exec, command: x}]`)
	if _, err := e.Run(t.Context(), wf, nil); err != nil || p.ran[0] != p.ran[1] {
		t.Errorf("%v, the commands ran in %q", err, p.ran)
	}
}

// TestCheckpointAfterResume verifies that a resumed run has the sandboxes of its replayed steps open, and that a
// checkpoint contains them, so that going back does not remove them.
func TestCheckpointAfterResume(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	wf := parse(t, `
checkpoints: true
sandbox: {image: a}
steps: [{id: one, type: exec, command: x}, {id: two, type: agent, agent: y}, {id: three, type: exec, command: bad}]`)
	p.interrupt(t, 4, echo, wf)
	open := 0
	next, end := p.start(t, -1, func(ctx context.Context, _ string, _ map[string]any) (workflow.AgentOutput, error) {
		run, _ := session.RunFromContext(ctx)
		open = len(p.m.InScope(run.Scope()))
		return workflow.AgentOutput{}, nil
	})
	_, err := next.Resume(t.Context(), wf, p.entries(t))
	if failed, ok := errors.AsType[*workflow.Error](err); !ok || failed.Step != "three" || open != 1 {
		t.Fatalf("%v, %d sandboxes were open during step two", err, open)
	}
	end()
	last, end := p.start(t, -1, echo)
	defer end()
	_, err = last.ResumeFrom(t.Context(), wf, p.entries(t), "three")
	failed, ok := errors.AsType[*workflow.Error](err)
	if !ok || failed.Step != "three" || len(p.ran) != 3 || p.ran[2] != p.ran[0] {
		t.Errorf("%v, the commands ran in %q", err, p.ran)
	}
}

// isolated returns a step whose steps share an isolated sandbox: a branch, or an item with a fork.
func isolated(fork bool, settings, steps string) string {
	if fork {
		return "{id: p, type: for_each, items: [1], fork: true, keep: 'true'" + settings + ", steps: [" + steps + "]}"
	}
	return "{id: p, type: parallel" + settings + ", branches: [{id: x, sandbox: isolated, steps: [" + steps + "]}]}"
}

// TestResumedBranch verifies that a resumed branch whose isolated sandbox is lost does not continue in an empty one.
// Another attempt and a branch without finished commands start with an empty sandbox.
func TestResumedBranch(t *testing.T) {
	t.Parallel()
	const command = "{id: a, type: exec, command: x}"
	const shared = "{id: a, type: exec, command: x, sandbox: other}"
	const private = "{id: a, type: exec, command: x, sandbox: isolated}"
	const fork = command + ", {id: f, type: for_each, items: [1], fork: true, steps: [{id: c, type: exec, command: x}]}"
	for name, test := range map[string]struct {
		fork             bool
		settings, before string
		ran              int
		lost             bool
	}{
		"with a finished command":    {false, "", command, 1, true},
		"another attempt":            {false, ", retry: {max_attempts: 2, backoff: 0s}", command, 3, false},
		"without a finished command": {false, "", "{id: a, type: set, vars: {v: 1}}", 1, false},
		"in another sandbox":         {false, "", shared, 2, false},
		"in a separate sandbox":      {false, "", private, 2, false},
		"fork":                       {true, "", command, 1, true},
		"fork in the branch":         {false, "", fork, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProcesses(t)
			wf := parse(t, "sandbox: {image: a}\nsteps: ["+isolated(test.fork, test.settings,
				test.before+", {id: open, type: agent, agent: open}, {id: b, type: exec, command: x}")+"]\n")
			open := func(ctx context.Context, _ string, _ map[string]any) (workflow.AgentOutput, error) {
				run, _ := session.RunFromContext(ctx)
				_, _, err := p.m.Open(ctx, run.Key(session.SessionNameFromContext(ctx)), session.Request{Image: "a"})
				return workflow.AgentOutput{}, err
			}
			p.interrupt(t, 5, open, wf)
			p.lose(t)
			next, end := p.start(t, -1, open)
			defer end()
			res, err := next.Resume(t.Context(), wf, p.entries(t))
			lost := err != nil && strings.Contains(err.Error(), "the files of the isolated sandbox are lost")
			if test.lost != lost || !lost && err != nil || len(p.ran) != test.ran {
				t.Errorf("%+v, %v, the commands ran in %q", res, err, p.ran)
			}
			if n := len(p.ran); n == 3 && p.ran[1] != p.ran[2] {
				t.Errorf("the second attempt ran in %q", p.ran[1:])
			}
		})
	}
}

// TestTimeoutInBranch verifies that the isolated sandbox of a branch exists until the timeout of the enclosing step is
// recorded, because a resumed run continues in it.
func TestTimeoutInBranch(t *testing.T) {
	t.Parallel()
	for _, fork := range []bool{false, true} {
		p := newProcesses(t)
		wf := parse(t, "sandbox: {image: a}\nsteps: ["+isolated(fork, ", timeout: 2s", "{id: a, type: exec, command: x}, "+
			"{id: b, type: agent, agent: y}, {id: c, type: exec, command: x}")+"]\n")
		p.interrupt(t, 6, func(ctx context.Context, _ string, _ map[string]any) (workflow.AgentOutput, error) {
			<-ctx.Done()
			return workflow.AgentOutput{}, ctx.Err()
		}, wf)
		next, end := p.start(t, -1, echo)
		t.Cleanup(end)
		res, err := next.Resume(t.Context(), wf, p.entries(t))
		if err != nil || len(p.ran) != 2 || p.ran[0] != p.ran[1] {
			t.Fatalf("%+v, %v, the commands ran in %q", res, err, p.ran)
		}
		if n := left(t, p.m, res.RunID); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
	}
}

// TestResumedSandboxes verifies that a resumed run has an interrupted step's sandboxes open, even if the step does not
// use them. A command gets the settings of the agent with the same sandbox.
func TestResumedSandboxes(t *testing.T) {
	t.Parallel()
	const steps = "{id: a, type: exec, command: x}, {id: look, type: agent, agent: x}, {id: b, type: exec, command: x}"
	for place, test := range map[string]struct {
		src  string
		room int
	}{
		"run":    {"steps: [" + steps + "]", 4},
		"branch": {"steps: [" + isolated(false, "", steps) + "]", 5},
		"fork":   {"sandbox: {image: a, env: {A: b}}\nsteps: [" + isolated(true, "", steps) + "]", 5},
	} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			p := newProcesses(t)
			wf := parse(t, test.src, "{mode: code, image: a, env: {A: b}}")
			open := 0
			look := func(ctx context.Context, _ string, _ map[string]any) (workflow.AgentOutput, error) {
				run, _ := session.RunFromContext(ctx)
				if _, err := p.m.Get(run.Key(session.SessionNameFromContext(ctx))); err == nil {
					open++
				}
				return workflow.AgentOutput{}, nil
			}
			p.interrupt(t, test.room, look, wf)
			next, end := p.start(t, -1, look)
			defer end()
			open = 0
			_, err := next.Resume(t.Context(), wf, p.entries(t))
			if err != nil || open != 1 || p.ran[0] != p.ran[1] || !slices.Contains(p.env, "A=b") {
				t.Errorf("%v, %d sandboxes were open, the commands ran in %q, the last with %q", err, open, p.ran, p.env)
			}
		})
	}
}

// TestResumedUnderPolicy verifies that a policy that allows only the agents' images does not stop a resumed run.
func TestResumedUnderPolicy(t *testing.T) {
	t.Parallel()
	doc, err := frontmatter.Parse("x.prompt", []byte("---\nmodel: x/y\nsandbox: {mode: code, image: a}\n---\nhi"))
	checktest.Must(t, err)
	for name, test := range map[string]struct {
		wf      *workflow.Workflow
		sandbox string
		room    int
	}{
		"agent":    {workflow.ForAgent(doc), record.DefaultName, 2},
		"workflow": {parse(t, "steps: [{id: a, type: agent, agent: x}, {id: b, type: agent, agent: x}]"), "own", 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProcesses(t)
			p.opts.Images = onlyA{}
			var ids []string
			agent := func(ctx context.Context, _ string, _ map[string]any) (workflow.AgentOutput, error) {
				run, _ := session.RunFromContext(ctx)
				s, _, err := p.m.Open(ctx, run.Key(test.sandbox), session.Request{Image: "a"})
				checktest.Must(t, err)
				ids = append(ids, s.ID())
				return workflow.AgentOutput{}, nil
			}
			p.interrupt(t, test.room, agent, test.wf)
			next, end := p.start(t, -1, agent)
			defer end()
			_, err := next.Resume(t.Context(), test.wf, p.entries(t))
			if err != nil || len(ids) < 2 || ids[0] != ids[len(ids)-1] {
				t.Errorf("%v, the agent's sandboxes: %q", err, ids)
			}
		})
	}
}

// TestForkDuringOutage verifies that a run is interrupted if the engine cannot create the sandbox of an item.
func TestForkDuringOutage(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	wf := parse(t, `
sandbox: {image: a}
steps: [{id: f, type: for_each, items: [1, 2], fork: true, steps: [{id: c, type: exec, command: x}]}]`)
	e, end := p.start(t, -1, nil)
	p.down.Store(true)
	stops(t, e, wf, workflow.ErrInterrupted)
	end()
	p.down.Store(false)
	e, end = p.start(t, -1, nil)
	defer end()
	if _, err := e.Resume(t.Context(), wf, p.entries(t)); err != nil || len(p.ran) != 2 {
		t.Errorf("%v, the commands ran in %q", err, p.ran)
	}
}

// TestRefusedWhenResumed verifies that a run keeps its files if the process that resumes it may not open its sandbox.
func TestRefusedWhenResumed(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	wf := parse(t, "sandbox: {image: b}\nsteps: [{id: a, type: exec, command: x}, {id: b, type: exec, command: x, retry: {max_attempts: 2, backoff: 1ms}}]")
	for i, refuses := range []bool{false, true, true, false} {
		p.opts.Images = nil
		if refuses {
			p.opts.Images = onlyA{}
		}
		room := -1
		if i == 0 {
			room = 3
		}
		e, end := p.start(t, room, echo)
		var err error
		if i == 0 {
			_, err = e.Run(t.Context(), wf, nil)
		} else {
			_, err = e.Resume(t.Context(), wf, p.entries(t))
		}
		if i < 3 && !errors.Is(err, workflow.ErrInterrupted) || i == 3 && err != nil {
			t.Fatalf("process %d: %v", i, err)
		}
		end()
	}
	if len(p.ran) != 2 || p.ran[0] != p.ran[1] {
		t.Errorf("the commands ran in %q", p.ran)
	}
}

// onlyA allows only the image a.
type onlyA struct{}

func (onlyA) Check(ref string) error {
	if ref != "a" {
		return backend.ErrPermission
	}
	return nil
}

// TestEngineDown verifies that a run without sandboxes is resumed without the engine. A run with sandboxes is
// interrupted again.
func TestEngineDown(t *testing.T) {
	t.Parallel()
	const command, agent = "{id: a, type: exec, command: x}", "{id: a, type: agent, agent: y}"
	for step, needs := range map[string]bool{command: true, agent: false} {
		p := newProcesses(t)
		wf := parse(t, "checkpoints: true\nsandbox: {image: a}\nsteps: ["+step+", {id: b, type: agent, agent: y}]\n")
		p.interrupt(t, 4, echo, wf)
		next, end := p.start(t, -1, echo)
		p.down.Store(true)
		res, err := next.Resume(t.Context(), wf, p.entries(t))
		if res == nil || errors.Is(err, workflow.ErrInterrupted) != needs || !needs && err != nil {
			t.Errorf("%s: %+v, %v", step, res, err)
		}
		p.down.Store(false)
		end()
	}
}

// TestLostConversation verifies that an interrupted agent starts over in an empty sandbox if its isolated sandbox is
// lost, because the conversation refers to lost files.
func TestLostConversation(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	wf := parse(t, "steps: [{id: a, type: agent, agent: y, sandbox: isolated}]")
	talk := &talkers{calls: map[string]int{}, fails: map[string]int{}}
	agent := func(ctx context.Context, name string, in map[string]any) (workflow.AgentOutput, error) {
		run, _ := session.RunFromContext(ctx)
		_, _, err := p.m.Open(ctx, run.Key(session.SessionNameFromContext(ctx)), session.Request{Image: "a"})
		checktest.Must(t, err)
		return talk.RunAgent(ctx, name, in)
	}
	p.interrupt(t, 4, agent, wf)
	p.lose(t)
	next, end := p.start(t, -1, agent)
	defer end()
	before := len(p.entries(t))
	res, err := next.Resume(t.Context(), wf, p.entries(t))
	if again := p.entries(t)[before+1]; err != nil || again.Turns != 0 || !again.Repeats {
		t.Errorf("%+v, %v, %+v", res, err, again)
	}
}

// TestResultsAfterCleanup verifies that a resumed run uses its saved outputs if an earlier process has already removed
// the sandbox with the outputs, even if another sandbox exists.
func TestResultsAfterCleanup(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	wf := parse(t, `
outputs: [f]
sandbox: {image: a}
steps: [{id: a, type: exec, command: x}, {id: b, type: exec, command: x, sandbox: b}]`)
	first, end := p.start(t, 4, echo)
	res, err := first.Run(t.Context(), wf, nil)
	if !errors.Is(err, workflow.ErrInterrupted) {
		t.Fatal(err)
	}
	checktest.Must(t, p.m.CloseSession(t.Context(), session.WorkflowKey(res.RunID, "default"), session.CloseOptions{}))
	end()
	results := t.TempDir()
	made := runfiles.Made{Source: "w.yaml", Outputs: patch.Tree{"f": {Mode: 0o644, Content: []byte("x")}}}
	checktest.Must(t, runfiles.Dir(results).Save(res.RunID, made))
	_, end = p.start(t, -1, echo)
	defer end()
	next := workflow.NewEngine(p.m, agents(echo), &workflow.Options{Journal: &p.cutJournal, Results: results})
	if res, err = next.Resume(t.Context(), wf, p.entries(t)); err != nil || string(res.Outputs["f"].Content) != "x" {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestForksAfterFailure verifies that forks in a caller's scope are closed even if the end of the for_each cannot be
// recorded, here because the run's data is too large.
func TestForksAfterFailure(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	_, end := p.start(t, -1, echo)
	defer end()
	within := session.Run{Namespace: record.NamespaceWorkflow, ID: session.NewRunID()}
	answer := func(_ context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
		size := map[string]int{"large": 4<<20 - 1024, "small": 4096}[name]
		return workflow.AgentOutput{Text: strings.Repeat("x", size)}, nil
	}
	src := "sandbox: {image: a}\nsteps:\n"
	for i := range 16 {
		src += fmt.Sprintf("  - {id: s%d, type: agent, agent: large}\n", i)
	}
	wf := parse(t, src+"  - {id: f, type: for_each, items: [1, 2, 3, 4, 5, 6, 7, 8], fork: true, "+
		"steps: [{id: a, type: agent, agent: small}]}\n")
	_, err := workflow.NewEngine(p.m, agents(answer), &workflow.Options{Within: &within}).Run(t.Context(), wf, nil)
	n := len(p.m.InScope(within.Scope()))
	if n != 1 || err == nil || !strings.Contains(err.Error(), "the run's data exceeds") {
		t.Errorf("%d sandboxes are open: %v", n, err)
	}
}
