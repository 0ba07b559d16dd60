package workflow_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
)

// newLocal returns the local backend, which has snapshots and needs no engine.
func newLocal(t *testing.T) backend.SandboxBackend {
	t.Helper()
	dir := t.TempDir()
	checktest.Must(t, os.Chmod(dir, 0o700))
	b, err := local.New(t.Context(), &local.Options{StateDir: dir})
	checktest.Must(t, err)
	return b
}

// printed returns the output of a command in an open sandbox.
func printed(t *testing.T, m *session.Manager, key session.Key, command string) string {
	t.Helper()
	s, err := m.Get(key)
	checktest.Must(t, err)
	r, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: command})
	checktest.Must(t, err)
	return string(r.Stdout.Bytes())
}

// localManager returns a manager on the local backend.
func localManager(t *testing.T) *session.Manager {
	t.Helper()
	b := newLocal(t)
	m, err := session.NewManager(b, nil)
	if err != nil {
		t.Fatal(errors.Join(err, b.Close()))
	}
	t.Cleanup(func() { checktest.Must(t, errors.Join(m.Close(context.Background()), b.Close())) })
	return m
}

// TestCheckpoints verifies that a failed run can go back to before any of its steps repeatedly, and that the files are
// restored.
func TestCheckpoints(t *testing.T) {
	t.Parallel()
	m := localManager(t)
	wf := parse(t, `id: w
checkpoints: true
sandbox: {image: host}
steps:
  - {id: one, type: exec, command: "echo one >> log"}
  - {id: other, type: exec, command: "echo other >> log", sandbox: side}
  - {id: two, type: exec, command: "cat log; echo two >> log"}
  - {id: three, type: exec, command: "cp log before; echo three >> log; test -e ok"}
  - {id: four, type: exec, command: "cat log"}
`)
	lost, err := workflow.NewEngine(m, nil, nil).Run(t.Context(), wf, nil)
	if left := m.InScope(session.WorkflowKey(lost.RunID, "").Scope()); err == nil || len(left) != 0 {
		t.Errorf("without a journal: %v, %d sandboxes are left", err, len(left))
	}
	j := &cutJournal{room: -1}
	e := workflow.NewEngine(m, nil, &workflow.Options{Journal: j})
	res, err := e.Run(t.Context(), wf, nil)
	if err == nil || res.Unfinished == nil || res.Outcome != workflow.Failed {
		t.Fatalf("%+v, %v", res, err)
	}
	for _, step := range []string{"three", "two", "three", "one", "two"} {
		res, err = e.ResumeFrom(t.Context(), wf, j.entries(t), step)
		failed, ok := errors.AsType[*workflow.Error](err)
		if !ok || failed.Step != "three" || res.Unfinished == nil {
			t.Fatalf("from %s: %+v, %v", step, res, err)
		}
		key := session.WorkflowKey(res.RunID, record.DefaultName)
		if got := printed(t, m, key, "cat log; cat before"); got != "one\ntwo\nthree\none\ntwo\n" {
			t.Errorf("from %s: the files are %q", step, got)
		}
		if got := printed(t, m, session.WorkflowKey(res.RunID, "side"), "cat log"); got != "other\n" {
			t.Errorf("from %s: the other sandbox has %q", step, got)
		}
	}
	// Fix the cause of the failure manually before resuming from the step.
	s, err := m.Get(session.WorkflowKey(res.RunID, record.DefaultName))
	checktest.Must(t, err)
	checktest.Must(t, s.Rollback(t.Context(), "cp.two.1"))
	printed(t, m, s.Key(), "touch ok")
	checktest.Must(t, s.RemoveSnapshot(t.Context(), "cp.two.1"))
	_, err = s.Snapshot(t.Context(), "cp.two.1")
	checktest.Must(t, err)
	res, err = e.ResumeFrom(t.Context(), wf, j.entries(t), "three")
	if err != nil || res.Output.(map[string]any)["stdout"] != "one\ntwo\nthree\n" {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := e.ResumeFrom(t.Context(), wf, j.entries(t), "three"); !errors.Is(err, workflow.ErrFinished) {
		t.Errorf("a run that has ended: %v", err)
	}
	if left := m.InScope(record.Scope{Namespace: record.NamespaceWorkflow, ID: res.RunID}); len(left) != 0 {
		t.Errorf("%d sandboxes are left", len(left))
	}
}

// TestResumeWithSameManager verifies that Resume kills leftover commands of the interrupted step in open sandboxes.
func TestResumeWithSameManager(t *testing.T) {
	t.Parallel()
	m := localManager(t)
	wf := parse(t, `id: w
sandbox: {image: host}
steps: [{id: alone, type: exec, command: "! grep -qx sleep /proc/[0-9]*/comm"}]
`)
	j := &cutJournal{room: 2}
	e := workflow.NewEngine(m, nil, &workflow.Options{Journal: j})
	res, err := e.Run(t.Context(), wf, nil)
	if !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	s, err := m.Get(session.WorkflowKey(res.RunID, record.DefaultName))
	checktest.Must(t, err)
	started := sandbox.WithOrigin(t.Context(), func() string { return res.RunID + " 2 0" })
	_, err = s.Exec(started, sandbox.ExecRequest{Command: "sleep 1000", Yield: time.Millisecond})
	checktest.Must(t, err)
	j.room = -1
	if res, err := e.Resume(t.Context(), wf, j.entries(t)); err != nil {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestNoCheckpoint verifies that a run cannot go back to a state that was not saved.
func TestNoCheckpoint(t *testing.T) {
	t.Parallel()
	step := func(seq int64, kind workflow.EventKind, id string) workflow.Entry {
		return workflow.Entry{Seq: seq, Kind: kind, Path: id, Step: id, Attempt: 1, Visit: 1}
	}
	entries := []workflow.Entry{
		{Seq: 1, Kind: workflow.EventRunStarted}, step(2, workflow.EventStepStarted, "a"), step(3, workflow.EventStepFinished, "a"),
		step(4, workflow.EventStepStarted, "b"),
	}
	saved := slices.Clone(entries)
	saved[2].Checkpoint = &workflow.Checkpoint{Name: "cp.a.1"}
	saved = append(saved, step(5, workflow.EventStepStarted, "c"))
	saved[4].Path = "b[0]/c"
	if _, _, err := workflow.Before(saved, "b[0]/c"); !errors.Is(err, workflow.ErrNoCheckpoint) {
		t.Errorf("before a step of an item: %v", err)
	}
	for _, id := range []string{"b", "c", "a/b"} {
		if _, _, err := workflow.Before(entries, id); !errors.Is(err, workflow.ErrNoCheckpoint) {
			t.Errorf("before %s: %v", id, err)
		}
	}
	kept, c, err := workflow.Before(entries, "a")
	if err != nil || len(kept) != 1 || len(c.Sandboxes) != 0 {
		t.Errorf("before the first: %v, %+v, %v", kept, c, err)
	}
}

// TestForks verifies that items of a for_each start with the same files and do not see each other's changes. The files
// of the first item to keep are copied back, even if the run goes back and repeats the step.
func TestForks(t *testing.T) {
	t.Parallel()
	m := localManager(t)
	wf := parse(t, `id: w
checkpoints: true
sandbox: {image: host}
steps:
  - {id: begin, type: exec, command: "echo base > f; echo x > gone"}
  - id: each
    type: for_each
    items: [1, 2, 3]
    fork: true
    keep: "item >= 2"
    max_concurrency: 3
    steps:
      - {id: try, type: exec, command: "cat f; echo $I >> f; rm gone; test $I -ne 1", env: {I: "${ item }"}}
  - {id: end, type: exec, command: "cat f; ls; test -e ok"}
`)
	j := &cutJournal{room: -1}
	e := workflow.NewEngine(m, nil, &workflow.Options{Journal: j})
	res, err := e.Run(t.Context(), wf, nil)
	for _, step := range []string{"end", "each", "begin", ""} {
		failed, ok := errors.AsType[*workflow.Error](err)
		if !ok || failed.Step != "end" || failed.Code != "exit_code" {
			t.Fatalf("before %s: %+v, %v", step, res, err)
		}
		key := session.WorkflowKey(res.RunID, record.DefaultName)
		if got := printed(t, m, key, "cat f; ls"); got != "base\n2\nf\n" {
			t.Errorf("before %s: %q", step, got)
		}
		if open := m.InScope(record.Scope{Namespace: record.NamespaceWorkflow, ID: res.RunID}); len(open) != 1 {
			t.Errorf("%d sandboxes are open, want the run's", len(open))
		}
		if step != "" {
			res, err = e.ResumeFrom(t.Context(), wf, j.entries(t), step)
		}
	}
	none := parse(t, `id: n
sandbox: {image: host}
steps:
  - {id: each, type: for_each, items: [1, 2], fork: true, keep: "false", steps: [{id: a, type: exec, command: "true"}]}
`)
	var failed *workflow.Error
	if _, err := e.Run(t.Context(), none, nil); !errors.As(err, &failed) || failed.Code != "no_match" {
		t.Errorf("without a winner: %v", err)
	}
	if _, err := workflow.Parse("w.yaml", []byte("id: w\nsteps: [{id: a, type: for_each, items: [1], keep: 'true', steps: [{id: b, type: end}]}]\n"), nil); err == nil {
		t.Error("keep without fork is accepted")
	}
}

// TestForksThatWereCutOff verifies that snapshots of a process that died while it copied an item's files back cause no
// conflict, and that a finished step leaves no snapshots.
func TestForksThatWereCutOff(t *testing.T) {
	t.Parallel()
	m := localManager(t)
	sum := sha256.Sum256([]byte("each"))
	kept := "kept." + hex.EncodeToString(sum[:8])
	var after []string
	agent := agents(func(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
		run, _ := session.RunFromContext(ctx)
		for _, s := range m.InScope(run.Scope()) {
			list, _, err := s.Snapshots(ctx)
			if err != nil {
				return workflow.AgentOutput{}, err
			}
			if name == "last" {
				for _, snap := range list {
					after = append(after, snap.Name)
				}
			} else if s.Key().Name != record.DefaultName {
				if _, err := s.Snapshot(ctx, kept); err != nil {
					return workflow.AgentOutput{}, err
				}
			}
		}
		return workflow.AgentOutput{Text: name}, nil
	})
	wf := parse(t, `id: w
sandbox: {image: host}
steps:
  - {id: begin, type: exec, command: "echo base > f"}
  - id: each
    type: for_each
    items: [1]
    fork: true
    keep: "true"
    steps:
      - {id: a, type: agent, agent: dies}
      - {id: try, type: exec, command: "echo new > f"}
  - {id: last, type: agent, agent: last}
  - {id: end, type: exec, command: "cat f"}
`)
	res, err := workflow.NewEngine(m, agent, nil).Run(t.Context(), wf, nil)
	if err != nil || res.Output.(map[string]any)["stdout"] != "new\n" {
		t.Fatalf("%+v, %v", res, err)
	}
	if len(after) != 0 {
		t.Errorf("left of the step: %q", after)
	}
}

// TestForksOfAttempts verifies that a second attempt starts with the sandbox's files, even if the first attempt's forks
// are retained, and that no snapshot remains.
func TestForksOfAttempts(t *testing.T) {
	t.Parallel()
	m := localManager(t)
	tried, left := 0, -1
	agent := agents(func(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
		if tried++; tried == 1 {
			return workflow.AgentOutput{}, errors.New("once")
		}
		if name == "last" {
			run, _ := session.RunFromContext(ctx)
			s, err := m.Get(run.Key(record.DefaultName))
			if err != nil {
				return workflow.AgentOutput{}, err
			}
			list, _, err := s.Snapshots(ctx)
			left = len(list)
			return workflow.AgentOutput{}, err
		}
		return workflow.AgentOutput{}, nil
	})
	wf := parse(t, `id: w
sandbox: {image: host, retention: 1h}
steps:
  - id: each
    type: for_each
    items: [1]
    fork: true
    keep: "true"
    retry: {max_attempts: 2}
    steps:
      - {id: new, type: exec, command: "test ! -e mark && touch mark"}
      - {id: try, type: agent, agent: a}
  - {id: last, type: agent, agent: last}
  - {id: end, type: exec, command: "ls"}
`)
	res, err := workflow.NewEngine(m, agent, nil).Run(t.Context(), wf, nil)
	list, err2 := m.List(t.Context())
	for _, info := range list { // they are retained
		err2 = errors.Join(err2, m.Remove(t.Context(), info.ID, true))
	}
	if err != nil || err2 != nil || tried != 3 || left != 0 || res.Output.(map[string]any)["stdout"] != "mark\n" {
		t.Errorf("%d agents, %d snapshots, %+v, %v, %v", tried, left, res, err, err2)
	}
}

// TestWithinKeepsNothing verifies that runs in another run's sandboxes leave no snapshots there, and that each run has
// its own forks.
func TestWithinKeepsNothing(t *testing.T) {
	t.Parallel()
	m := localManager(t)
	within := session.Run(record.UserScope("u"))
	forks := map[string]bool{}
	agent := agents(func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
		for _, s := range m.InScope(within.Scope()) {
			forks[s.Key().Name] = true
		}
		return workflow.AgentOutput{}, nil
	})
	wf := parse(t, `id: w
checkpoints: true
sandbox: {image: host}
steps:
  - {id: each, type: for_each, items: [1], fork: true, keep: "true", steps: [{id: a, type: agent, agent: a}]}
`)
	for range 2 {
		stops(t, workflow.NewEngine(m, agent, &workflow.Options{Within: &within}), wf, nil)
	}
	s, err := m.Get(within.Key(record.DefaultName))
	checktest.Must(t, err)
	if list, _, err := s.Snapshots(t.Context()); err != nil || len(list) != 0 || len(forks) != 3 {
		t.Errorf("%+v, %v, sandboxes %v", list, err, forks)
	}
}

// diesAfter stores one more entry of a kind and then fails, like a process that dies after the entry.
type diesAfter struct {
	*cutJournal
	kind workflow.EventKind
}

func (j *diesAfter) Append(ctx context.Context, e workflow.Entry) error {
	err := j.cutJournal.Append(ctx, e)
	if e.Kind == j.kind {
		j.kind = ""
		return errCut
	}
	return err
}

// TestGoingBackIsCutOff verifies that a resumed run goes back if the process died before it went back. If going back
// fails, the run loses no entries.
func TestGoingBackIsCutOff(t *testing.T) {
	t.Parallel()
	m := localManager(t)
	wf := parse(t, `id: w
checkpoints: true
sandbox: {image: host}
steps:
  - {id: one, type: exec, command: "echo one >> log"}
  - {id: two, type: exec, command: "echo two >> log; cat log"}
  - {id: three, type: exec, command: "echo three >> log; exit 1"}
`)
	j := &diesAfter{cutJournal: &cutJournal{room: -1}}
	e := workflow.NewEngine(m, nil, &workflow.Options{Journal: j})
	res, err := e.Run(t.Context(), wf, nil)
	if err == nil || res.Unfinished == nil {
		t.Fatalf("%+v, %v", res, err)
	}
	s, err := m.Get(session.WorkflowKey(res.RunID, record.DefaultName))
	checktest.Must(t, err)
	files := func() string {
		t.Helper()
		return printed(t, m, s.Key(), "cat log")
	}
	for range 2 {
		for _, resume := range []func() error{
			func() error { _, err := e.ResumeFrom(t.Context(), wf, j.entries(t), "two"); return err },
			func() error { _, err := e.Resume(t.Context(), wf, j.entries(t)); return err },
		} {
			j.kind = workflow.EventRunResumed
			if err := resume(); !errors.Is(err, errCut) || files() != "one\ntwo\nthree\n" {
				t.Fatalf("%v, the files are %q", err, files())
			}
		}
		var failed *workflow.Error
		if _, err := e.Resume(t.Context(), wf, j.entries(t)); !errors.As(err, &failed) || failed.Step != "three" || files() != "one\ntwo\nthree\n" {
			t.Fatalf("%v, the files are %q", err, files())
		}
	}
	checktest.Must(t, s.RemoveSnapshot(t.Context(), "cp.one.1"))
	before := len(j.lines)
	if _, err := e.ResumeFrom(t.Context(), wf, j.entries(t), "two"); !errors.Is(err, workflow.ErrNoCheckpoint) {
		t.Errorf("to a removed snapshot: %v", err)
	}
	if len(j.lines) != before || files() != "one\ntwo\nthree\n" {
		t.Errorf("%d entries, there were %d; the files are %q", len(j.lines), before, files())
	}
}
