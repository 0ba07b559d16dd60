package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
)

// interruptingAgents interrupt the run in one of their calls.
type interruptingAgents struct {
	*resumeAgents
	left      atomic.Int64 // remaining calls before the interruption
	interrupt context.CancelCauseFunc
}

func (a *interruptingAgents) RunAgent(ctx context.Context, name string, input map[string]any) (workflow.AgentOutput, error) {
	if a.left.Add(-1) == 0 {
		a.interrupt(workflow.ErrInterrupted)
		return workflow.AgentOutput{}, ctx.Err()
	}
	return a.resumeAgents.RunAgent(ctx, name, input)
}

// TestInterrupted interrupts a run in each call of its agents. It verifies that the interrupted call is not recorded
// and that the resumed run has the same result.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	wf, input := parse(t, everything), map[string]any{"ratio": 1.5}
	whole := newResumeAgents()
	want, err := workflow.NewEngine(nil, whole, nil).Run(t.Context(), wf, input)
	checktest.Must(t, err)
	calls := 0
	for _, n := range whole.calls {
		calls += n
	}
	for call := 1; call <= calls; call++ {
		ctx, interrupt := context.WithCancelCause(t.Context())
		agents, journal := &interruptingAgents{resumeAgents: newResumeAgents(), interrupt: interrupt}, &cutJournal{room: -1}
		agents.left.Store(int64(call))
		engine := workflow.NewEngine(nil, agents, &workflow.Options{Journal: journal})
		res, err := engine.Run(ctx, wf, input)
		if !errors.Is(err, workflow.ErrInterrupted) || res == nil || !errors.Is(res.Unfinished, workflow.ErrInterrupted) {
			t.Fatalf("call %d: %+v, %v", call, res, err)
		}
		entries := journal.entries(t)
		for _, e := range entries {
			if e.Error != nil && e.Error.Code != "agent_failed" && e.Error.Code != "failed" && e.Error.Code != "branches" {
				t.Errorf("call %d: recorded is %+v", call, e)
			}
		}
		got, err := engine.Resume(t.Context(), wf, entries)
		if err != nil {
			t.Fatalf("call %d: %v", call, err)
		}
		if diff := cmp.Diff(want.Output, got.Output); diff != "" {
			t.Errorf("call %d: output (-want +got)\n%s", call, diff)
		}
	}
}

// TestInterruptedSandbox verifies that an interrupted run keeps the sandbox and files, and that OnKept is called when
// the resumed run ends.
func TestInterruptedSandbox(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	wf := parse(t, `id: w
outputs: [log]
sandbox: {image: "`+image+`"}
steps:
  - {id: one, type: exec, command: "echo one >> log"}
  - {id: two, type: agent, agent: two}
  - {id: three, type: exec, command: "echo three >> log"}
`)
	e, err := wf.Begin(nil)
	checktest.Must(t, err)
	journal := &cutJournal{room: -1}
	checktest.Must(t, journal.Append(t.Context(), e))
	ctx, interrupt := context.WithCancelCause(t.Context())
	agents := &interruptingAgents{resumeAgents: newResumeAgents(), interrupt: interrupt}
	agents.left.Store(1)
	kept, results, away := "", t.TempDir(), true
	engine := workflow.NewEngine(m, agents, &workflow.Options{Journal: journal, Results: results, OnKept: func(_ context.Context, id string) error {
		if away {
			return backend.ErrUnavailable
		}
		kept = id
		_, err := os.Stat(filepath.Join(results, id))
		return err
	}})
	if res, err := engine.Resume(ctx, wf, journal.entries(t)); !errors.Is(err, workflow.ErrInterrupted) || left(t, m, e.RunID) != 1 || kept != "" {
		t.Fatalf("%+v, %v, kept %q, %d sandboxes", res, err, kept, left(t, m, e.RunID))
	}
	res, err := engine.Resume(t.Context(), wf, journal.entries(t))
	if !errors.Is(err, workflow.ErrInterrupted) || left(t, m, e.RunID) != 1 {
		t.Fatalf("its results cannot be kept now: %+v, %v, %d sandboxes", res, err, left(t, m, e.RunID))
	}
	away = false
	res, err = engine.Resume(t.Context(), wf, journal.entries(t))
	if err != nil || res.RunID != e.RunID || left(t, m, e.RunID) != 0 || kept != e.RunID {
		t.Fatalf("%+v, %v, kept %q", res, err, kept)
	}
	if got := string(res.Outputs["log"].Content); got != "one\nthree\n" {
		t.Errorf("the output is %q", got)
	}
}

// TestOutage verifies that the run is interrupted if the engine is unavailable or full, unless retry or on_error
// handles the error. No failure is recorded, and the resumed run repeats the step.
func TestOutage(t *testing.T) {
	t.Parallel()
	const (
		step    = "{id: a, type: agent, agent: x}"
		handled = "{id: b, type: end, output: handled}"
		retried = "{id: a, type: agent, agent: x, on_error: b, retry: {max_attempts: 2, backoff: 0s}}, " + handled
	)
	for name, test := range map[string]struct {
		steps     string
		err       error
		interrupt bool
		output    any
	}{
		"full disk":            {step, backend.ErrNoRoom, true, "ok"},
		"another version":      {step, backend.ErrVersion, true, "ok"},
		"full":                 {step, backend.ErrCapacity, true, "ok"},
		"held elsewhere":       {retried, record.ErrHeld, true, "handled"},
		"lost":                 {"{id: a, type: agent, agent: x, on_error: b}, " + handled, backend.ErrLost, false, "handled"},
		"in a branch":          {"{id: p, type: parallel, max_concurrency: 1, branches: [{id: two, steps: [{id: c, type: set, vars: {x: 1}}]}, {id: one, steps: [" + step + "]}]}", backend.ErrUnavailable, true, map[string]any{"one": "ok", "two": nil}},
		"another attempt":      {"{id: a, type: agent, agent: x, retry: {max_attempts: 2, backoff: 0s}}", backend.ErrUnavailable, false, "ok"},
		"handled":              {"{id: a, type: agent, agent: x, on_error: b}, " + handled, backend.ErrUnavailable, false, "handled"},
		"handled outside":      {"{id: p, type: parallel, on_error: b, branches: [{id: one, steps: [" + step + "]}]}, " + handled, backend.ErrUnavailable, false, "handled"},
		"the step's own fault": {"{id: a, type: agent, agent: x, on_error: b}, " + handled, backend.ErrImage, false, "handled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			fail := agents(func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
				if calls.Add(1) == 1 {
					return workflow.AgentOutput{}, fmt.Errorf("the engine: %w", test.err)
				}
				return workflow.AgentOutput{Text: "ok"}, nil
			})
			wf, journal := parse(t, "id: w\nsteps: ["+test.steps+"]\n"), &cutJournal{room: -1}
			engine := workflow.NewEngine(nil, fail, &workflow.Options{Journal: journal})
			res, err := engine.Run(t.Context(), wf, nil)
			if test.interrupt {
				if !errors.Is(err, workflow.ErrInterrupted) || !errors.Is(res.Unfinished, test.err) {
					t.Fatalf("%+v, %v", res, err)
				}
				entries := journal.entries(t)
				for _, e := range entries {
					if e.Error != nil {
						t.Errorf("recorded is %+v", e)
					}
				}
				res, err = engine.Resume(t.Context(), wf, entries)
			}
			checktest.Must(t, err)
			if diff := cmp.Diff(test.output, res.Output); diff != "" {
				t.Errorf("output (-want +got)\n%s", diff)
			}
		})
	}
	fail := agents(func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
		return workflow.AgentOutput{}, backend.ErrUnavailable
	})
	res, err := workflow.NewEngine(nil, fail, nil).Run(t.Context(), parse(t, "id: w\nsteps: ["+step+"]\n"), nil)
	if res.Outcome != workflow.Failed || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("without a journal: %+v, %v", res, err)
	}
}

// TestLongOutage verifies that interruptions do not count against max_steps, so a run can wait for its engine without
// limit.
func TestLongOutage(t *testing.T) {
	t.Parallel()
	wf := parse(t, "id: w\nmax_steps: 2\nsteps: [{id: a, type: agent, agent: x}, {id: b, type: end, output: done}]\n")
	calls, journal := 0, &cutJournal{room: -1}
	engine := workflow.NewEngine(nil, agents(func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
		if calls++; calls < 5 {
			return workflow.AgentOutput{}, backend.ErrCapacity
		}
		return workflow.AgentOutput{}, nil
	}), &workflow.Options{Journal: journal})
	res, err := engine.Run(t.Context(), wf, nil)
	for errors.Is(err, workflow.ErrInterrupted) {
		res, err = engine.Resume(t.Context(), wf, journal.entries(t))
	}
	if err != nil || res.Output != "done" || res.Steps != 2 || calls != 5 {
		t.Errorf("%+v, %v, %d calls", res, err, calls)
	}
}

// silentJournal stores entries up to one to which it never responds.
type silentJournal struct {
	cutJournal
	asked chan struct{}
}

func (j *silentJournal) Append(ctx context.Context, e workflow.Entry) error {
	if j.room != 0 {
		return j.cutJournal.Append(ctx, e)
	}
	close(j.asked)
	<-ctx.Done()
	return ctx.Err()
}

// TestInterruptedWhileItRecords verifies that an interrupted run does not wait for its journal.
func TestInterruptedWhileItRecords(t *testing.T) {
	t.Parallel()
	wf := parse(t, "id: w\nsteps: [{id: a, type: agent, agent: x}]\n")
	journal := &silentJournal{cutJournal: cutJournal{room: 2}, asked: make(chan struct{})}
	ctx, interrupt := context.WithCancelCause(t.Context())
	go func() {
		<-journal.asked
		interrupt(workflow.ErrInterrupted)
	}()
	res, err := workflow.NewEngine(nil, newResumeAgents(), &workflow.Options{Journal: journal}).Run(ctx, wf, nil)
	if !errors.Is(err, workflow.ErrInterrupted) || !errors.Is(res.Unfinished, workflow.ErrInterrupted) {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestBegin verifies that the input of a new run is validated and contains the defaults.
func TestBegin(t *testing.T) {
	t.Parallel()
	wf := parse(t, "id: w\ninput: {type: object, properties: {n: {type: integer, default: 3}}}\nsteps: [{id: a, type: end}]\n")
	e, err := wf.Begin(map[string]any{})
	if err != nil || e.Seq != 1 || e.Kind != workflow.EventRunStarted || e.Hash != wf.Hash || e.Input["n"] != int64(3) {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := wf.Begin(map[string]any{"n": "three"}); !errors.Is(err, workflow.ErrInvalidInput) {
		t.Errorf("%v, want ErrInvalidInput", err)
	}
}
