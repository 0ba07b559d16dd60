package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
)

// TestUnfinished verifies that a run whose results cannot be saved does not end and keeps the sandbox. The resumed run
// collects the results. If the process then dies before the end is recorded, the results are still available.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	dir, results := t.TempDir(), t.TempDir()
	checktest.Must(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("old\n"), 0o644))
	wf := parse(t, `id: w
outputs: [r.csv, "none?"]
sandbox: {image: "`+image+`"}
steps: [{id: make, type: exec, command: "echo new > a.txt; echo csv > r.csv"}]
`)
	journal := &cutJournal{room: -1}
	aside := filepath.Join(t.TempDir(), "aside")
	engine := workflow.NewEngine(m, nil, &workflow.Options{Workspace: dir, Results: results, Journal: journal, OnEvent: func(ev workflow.Event) {
		if own := filepath.Join(results, ev.RunID); ev.Kind == workflow.EventStepFinished {
			if err := errors.Join(os.Rename(own, aside), os.WriteFile(own, nil, 0o600)); err != nil {
				t.Error(err)
			}
		}
	}})
	res, err := engine.Run(t.Context(), wf, nil)
	if err == nil || res.Unfinished == nil || res.Outcome != workflow.Succeeded || left(t, m, res.RunID) != 1 {
		t.Fatalf("blocked: %+v, %v, %d sandboxes left", res, err, left(t, m, res.RunID))
	}
	own := filepath.Join(results, res.RunID)
	checktest.Must(t, errors.Join(os.Remove(own), os.Rename(aside, own)))
	entries := journal.entries(t)
	engine = workflow.NewEngine(m, nil, &workflow.Options{Workspace: dir, Results: results, Journal: &cutJournal{room: -1}})
	for _, end := range []string{"resumed", "resumed after its sandbox was removed"} {
		if res, err = engine.Resume(t.Context(), wf, entries); err != nil || res.Unfinished != nil || left(t, m, res.RunID) != 0 {
			t.Fatalf("%s: %+v, %v", end, res, err)
		}
		if got := string(res.Outputs["r.csv"].Content); got != "csv\n" || res.Patch == nil || res.Patch.Stat().Files != 2 || len(res.Missing) != 1 {
			raw, _ := json.Marshal(res)
			t.Errorf("%s: %q, %s", end, got, raw)
		}
	}
}

// TestLostAtTheEnd verifies that a run fails and ends if the sandbox is lost before the results were collected, because
// resuming could not collect them.
func TestLostAtTheEnd(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	wf := parse(t, "id: w\noutputs: [r.csv]\nsandbox: {image: \""+image+"\"}\nsteps: [{id: make, type: exec, command: \"echo csv > r.csv\"}]\n")
	journal := &cutJournal{room: -1}
	engine := workflow.NewEngine(m, nil, &workflow.Options{Workspace: t.TempDir(), Results: t.TempDir(), Journal: journal, OnEvent: func(ev workflow.Event) {
		if ev.Kind != workflow.EventStepFinished {
			return
		}
		list, err := m.Backend().List(t.Context(), backend.Filter{Instance: m.Instance()})
		for _, info := range list {
			err = errors.Join(err, m.Backend().Remove(t.Context(), info.ID, backend.RemoveOptions{Volumes: true}))
		}
		if err != nil || len(list) != 1 {
			t.Errorf("%v, %v", list, err)
		}
	}})
	res, err := engine.Run(t.Context(), wf, nil)
	if err == nil || res.Unfinished != nil || res.Outcome != workflow.Failed {
		t.Fatalf("%+v, %v", res, err)
	}
	entries := journal.entries(t)
	if last := entries[len(entries)-1]; last.Kind != workflow.EventRunFinished {
		t.Errorf("the last entry is %+v", last)
	}
}

// TestInterruptedInAStep verifies that interrupting a run kills the running command, records nothing, and keeps the
// sandbox, so the run is resumed as if the process had died.
func TestInterruptedInAStep(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	wf := parse(t, `id: w
outputs: [log]
sandbox: {image: "`+image+`"}
steps:
  - {id: one, type: exec, command: "echo one >> log"}
  - {id: two, type: exec, command: "sleep 1000"}
`)
	ctx, interrupt := context.WithCancelCause(t.Context())
	journal := &cutJournal{room: -1}
	engine := workflow.NewEngine(m, nil, &workflow.Options{Results: t.TempDir(), Journal: journal, OnEvent: func(ev workflow.Event) {
		if ev.Kind == workflow.EventStepStarted && ev.Step == "two" {
			interrupt(workflow.ErrInterrupted)
		}
	}})
	res, err := engine.Run(ctx, wf, nil)
	if !errors.Is(err, workflow.ErrInterrupted) || res.Unfinished == nil || left(t, m, res.RunID) != 1 {
		t.Fatalf("%+v, %v, %d sandboxes are left", res, err, left(t, m, res.RunID))
	}
	entries := journal.entries(t)
	if last := entries[len(entries)-1]; last.Kind != workflow.EventStepStarted || last.Step != "two" {
		t.Errorf("the last entry is %+v", last)
	}
}

// TestLostInAStep verifies that a run whose sandbox dies keeps the files of its steps. If the step is retried or its
// failure is handled, the run continues. Otherwise the run is interrupted, until one step has lost too many sandboxes.
func TestLostInAStep(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		step        string
		always      bool // the sandbox dies in each attempt
		interrupted int
		want        workflow.Outcome
		log         string
	}{
		"resumed":  {"", false, 1, workflow.Succeeded, "one\ntwo\ntwo\n"},
		"retried":  {", retry: {max_attempts: 2, backoff: 0s}", false, 0, workflow.Succeeded, "one\ntwo\ntwo\n"},
		"handled":  {", on_error: continue", false, 0, workflow.Succeeded, "one\ntwo\n"},
		"stubborn": {"", true, 5, workflow.Failed, "one\n" + strings.Repeat("two\n", 6)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t)
			dir := t.TempDir()
			checktest.Must(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("old\n"), 0o644))
			wf := parse(t, `id: w
outputs: [log]
sandbox: {image: "`+image+`"}
steps:
  - {id: one, type: exec, command: "echo one >> log; echo new > a.txt"}
  - {id: two, type: exec, command: "echo two >> log; test -e calm || exec sleep 1000"`+test.step+`}
`)
			journal := &cutJournal{room: -1}
			deaths := 0
			var killing sync.WaitGroup
			opts := &workflow.Options{Workspace: dir, Results: t.TempDir(), Journal: journal, OnEvent: func(ev workflow.Event) {
				if ev.Kind != workflow.EventStepStarted || ev.Step != "two" {
					return
				}
				if deaths++; test.always {
					killing.Go(func() { kill(t, m, ev.RunID, deaths, "/tmp/none") })
				} else if deaths == 1 {
					killing.Go(func() { kill(t, m, ev.RunID, deaths, "calm") })
				}
			}}
			res, err := workflow.NewEngine(m, nil, opts).Run(t.Context(), wf, nil)
			interrupted := 0
			for ; errors.Is(err, workflow.ErrInterrupted) && interrupted < 10; interrupted++ {
				killing.Wait()
				res, err = workflow.NewEngine(m, nil, opts).Resume(t.Context(), wf, journal.entries(t))
			}
			killing.Wait()
			if res.Outcome != test.want || interrupted != test.interrupted || left(t, m, "") != 0 {
				t.Errorf("%s after %d interruptions, %d sandboxes are left: %v", res.Outcome, interrupted, left(t, m, ""), err)
			}
			if got := string(res.Outputs["log"].Content); got != test.log || res.Patch == nil || res.Patch.Stat().Files < 2 {
				t.Errorf("log %q, want %q; patch %v", got, test.log, res.Patch)
			}
		})
	}
}

// TestLostUnderAnAgent verifies that the loss of a sandbox during an agent's call interrupts the run, whatever the
// agent answers, unless retry or on_error handles it.
func TestLostUnderAnAgent(t *testing.T) {
	t.Parallel()
	for extra, want := range map[string]bool{"": true, ", on_error: continue": false, ", retry: {max_attempts: 2, backoff: 0s}": false} {
		var calls atomic.Int64
		agent := agents(func(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
			if rec := transcript.Claim(ctx, name); calls.Add(1) == 1 && rec.Interrupted(ctx, backend.ErrLost) != want {
				t.Errorf("%q: interrupted is %t", extra, !want)
			}
			return workflow.AgentOutput{Text: fmt.Sprint("answer ", calls.Load())}, nil
		})
		wf, journal := parse(t, "id: w\nsteps: [{id: a, type: agent, agent: x"+extra+"}]\n"), &cutJournal{room: -1}
		engine := workflow.NewEngine(newManager(t), agent, &workflow.Options{Results: t.TempDir(), Journal: journal})
		res, err := engine.Run(t.Context(), wf, nil)
		answer := "answer 1"
		if want {
			if !errors.Is(err, workflow.ErrInterrupted) {
				t.Fatalf("%q: %+v, %v", extra, res, err)
			}
			res, err = engine.Resume(t.Context(), wf, journal.entries(t))
			answer = "answer 2"
		}
		if err != nil || res.Output != answer {
			t.Errorf("%q: %v, %v; want %q", extra, res.Output, err, answer)
		}
	}
}

// kill creates a file in the sandbox of a run and then stops the sandbox, once the run's step has started for the nth
// time.
func kill(t *testing.T, m *session.Manager, run string, n int, file string) {
	command := fmt.Sprintf("[ $(grep -c two log) = %d ] && touch %s", n, file)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		s, err := m.Get(session.WorkflowKey(run, record.DefaultName))
		if err != nil {
			continue // it is being opened
		}
		if res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: command}); err != nil || res.ExitCode != 0 {
			continue
		}
		if err := m.Backend().Stop(t.Context(), s.Info().EngineID); err != nil {
			t.Error(err)
		}
		return
	}
	t.Error("the step does not begin")
}
