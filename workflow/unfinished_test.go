package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/workflow"
)

// TestUnfinished: a run whose results cannot be kept does not end and leaves its sandbox; resumed, it brings them home. One
// that dies after that, before its end was recorded, has them still.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	dir, results := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("old\n"), 0o644); err != nil {
		t.Fatal(err)
	}
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
	if err := errors.Join(os.Remove(own), os.Rename(aside, own)); err != nil {
		t.Fatal(err)
	}
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

// TestLostAtTheEnd: a run whose sandbox is lost before what it made was read has failed and ended: nothing is left to resume for.
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

// TestInterruptedInAStep: a run that is interrupted while a command runs ends that, records nothing and leaves its sandbox, so that
// it is resumed as if its process had died.
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
