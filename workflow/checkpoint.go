package workflow

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/session"
)

// A checkpoint is a snapshot of each of the run's sandboxes. All snapshots have the same name, and the journal entry at
// the end of a step contains it. If a run goes back to before a step, the sandboxes are rolled back, and later entries
// do not count: the entry with which the run resumes contains the number of the last valid entry.

// ErrNoCheckpoint means that a run cannot go back to the point before a step.
var ErrNoCheckpoint = errors.New("no checkpoint before the step")

// Checkpoint is the saved state of a run's sandboxes at the end of a step.
type Checkpoint struct {
	Name      string   `json:"name"`                // name of the snapshots
	Sandboxes []string `json:"sandboxes,omitempty"` // names of the sandboxes in the run; others did not exist
}

// checkpoint saves the state of the run's sandboxes at the end of a top-level step. If checkpoints are off, it returns
// nil.
func (ex *execution) checkpoint(ctx context.Context) (*Checkpoint, error) {
	r := ex.run
	if !r.wf.Checkpoints || r.manager == nil || r.opts.Within != nil || ex.seq.outer != nil || ctx.Err() != nil {
		return nil, nil
	}
	c := &Checkpoint{Name: fmt.Sprintf("%s%s.%d", rules.Checkpoint, ex.id, ex.visit)}
	for _, s := range r.manager.InScope(r.scope().Scope()) {
		name := s.Key().Name
		if rules.IsIsolated(name) { // only the step uses it, and the step is over
			continue
		}
		if err := keepSnapshot(ctx, s, c.Name); err != nil {
			return nil, finalf(fallbackCode(ex.typ), err, "cannot create a checkpoint: %v", err)
		}
		c.Sandboxes = append(c.Sandboxes, name)
	}
	slices.Sort(c.Sandboxes)
	return c, nil
}

// keepSnapshot creates a snapshot. It replaces a snapshot with the same name from a dead process without a record of
// it. If there are too many snapshots, it removes the run's oldest one.
func keepSnapshot(ctx context.Context, s *session.Session, name string) error {
	_, err := s.Snapshot(ctx, name)
	if !errors.Is(err, backend.ErrExists) && !errors.Is(err, backend.ErrCapacity) {
		return err
	}
	if err := makeRoom(ctx, s, name); err != nil {
		return err
	}
	_, err = s.Snapshot(ctx, name)
	return err
}

// makeRoom removes the snapshot with this name. If there are too many snapshots, it also removes the run's oldest one.
func makeRoom(ctx context.Context, s *session.Session, name string) error {
	if err := s.RemoveSnapshot(ctx, name); err != nil {
		return err
	}
	list, _, err := s.Snapshots(ctx)
	if err != nil || len(list) < backend.MaxSnapshots {
		return err
	}
	i := slices.IndexFunc(list, func(s backend.Snapshot) bool { return rules.IsRunSnapshot(s.Name) })
	if i < 0 {
		return fmt.Errorf("the sandbox has %d other snapshots: %w", len(list), backend.ErrCapacity)
	}
	return s.RemoveSnapshot(ctx, list[i].Name)
}

// History returns the valid entries. If a run went back to the point before a step, the undone entries are not valid.
func History(entries []Entry) []Entry {
	var kept []Entry
	for _, e := range entries {
		if e.Kind == EventRunResumed && e.Behind > 0 {
			kept = slices.DeleteFunc(kept, func(old Entry) bool { return old.Seq > e.Behind })
		}
		kept = append(kept, e)
	}
	return kept
}

// Before returns the part of a run's journal that remains if the run goes back to the point before the latest execution
// of a top-level step, and the checkpoint for this point. If the step was not reached, or if no checkpoint exists, the
// error wraps ErrNoCheckpoint.
func Before(entries []Entry, step string) ([]Entry, *Checkpoint, error) {
	entries = History(entries)
	at := -1
	for i, e := range entries {
		// An execution with several attempts starts with the first attempt.
		if e.Path == step && e.Step == step && e.Kind == EventStepStarted && !e.Repeats && e.Attempt == 1 {
			at = i
		}
	}
	if at < 0 {
		return nil, nil, fmt.Errorf("step %s of the run was not reached: %w", clip(step), ErrNoCheckpoint)
	}
	c, err := latest(entries[:at])
	if err != nil {
		return nil, nil, fmt.Errorf("before step %s: %w", clip(step), err)
	}
	return entries[:at], c, nil
}

// latest returns the checkpoint at the end of a journal.
func latest(entries []Entry) (*Checkpoint, error) {
	for i := len(entries) - 1; i > 0; i-- {
		e := entries[i]
		if e.Kind != EventStepFinished || e.Retry || e.Status == StatusSkipped || e.Path != e.Step {
			continue
		}
		if e.Checkpoint == nil {
			return nil, fmt.Errorf("step %s has no checkpoint: %w", clip(e.Step), ErrNoCheckpoint)
		}
		return e.Checkpoint, nil
	}
	return &Checkpoint{}, nil // before the first step, no sandbox exists
}

// pendingRollback returns the checkpoint to which a run was going back when the process died. No step has started
// since. Without such a checkpoint, it returns nil.
func pendingRollback(entries []Entry) (*Checkpoint, error) {
	for i := len(entries) - 1; i > 0 && entries[i].Kind == EventRunResumed; i-- {
		if entries[i].Behind > 0 {
			return latest(History(entries))
		}
	}
	return nil, nil
}

// ResumeFrom resumes a run from the point before the latest execution of a top-level step, with the sandboxes rolled
// back to this point. The effects of the step and of later steps are undone, and the steps run again. The run must have
// been created with `checkpoints: true`. It may have failed: a failed run of this kind has no end in the journal.
// Without a checkpoint, the error wraps ErrNoCheckpoint.
func (e *Engine) ResumeFrom(ctx context.Context, wf *Workflow, entries []Entry, step string) (*Result, error) {
	if err := resumable(wf, entries); err != nil {
		return nil, err
	}
	kept, checkpoint, err := Before(entries, step)
	if err != nil {
		return nil, err
	}
	r, err := e.resumed(ctx, wf, kept)
	if err != nil {
		return nil, err
	}
	r.seq, r.behind = int64(len(entries)), kept[len(kept)-1].Seq
	r.goBack(checkpoint)
	return e.drive(ctx, r)
}

// goBack makes the run start from a checkpoint.
func (r *run) goBack(c *Checkpoint) {
	if r.checkpoint = c; c != nil {
		r.base.OnAdopt = nil // a rollback ends all commands
	}
}

// restorable returns an error if the run cannot go back. Call it before the later entries become invalid.
func (r *run) restorable(ctx context.Context) error {
	if r.checkpoint == nil || r.manager == nil || r.opts.Within != nil {
		return nil
	}
	for _, name := range r.checkpoint.Sandboxes {
		s, err := r.reopen(ctx, name, named(name))
		if err == nil {
			var list []backend.Snapshot
			list, _, err = s.Snapshots(ctx)
			if err == nil && !slices.ContainsFunc(list, func(s backend.Snapshot) bool { return s.Name == r.checkpoint.Name }) {
				err = fmt.Errorf("snapshot %s no longer exists: %w", r.checkpoint.Name, ErrNoCheckpoint)
			}
		}
		if err != nil {
			return cannotRestore(name, err)
		}
	}
	return nil
}

func cannotRestore(name string, err error) error {
	return finalf(codeInternal, err, "cannot restore sandbox %s: %v", name, err)
}

// restore rolls the run's sandboxes back to a checkpoint. It removes newer sandboxes.
func (r *run) restore(ctx context.Context) error {
	if r.checkpoint == nil || r.manager == nil || r.opts.Within != nil {
		return nil
	}
	list, err := r.manager.List(ctx)
	if err != nil {
		return err
	}
	for _, info := range list {
		if info.Key.Scope() == r.scope().Scope() && !slices.Contains(r.checkpoint.Sandboxes, info.Key.Name) {
			if err := r.manager.Remove(ctx, info.ID, true); err != nil {
				return err
			}
		}
	}
	for _, name := range r.checkpoint.Sandboxes {
		if err := r.restoreSandbox(ctx, name); err != nil {
			return cannotRestore(name, err)
		}
	}
	return nil
}

// reopen opens an existing sandbox of the run.
func (r *run) reopen(ctx context.Context, name string, at location) (*session.Session, error) {
	req := r.sandboxRequest(at)
	req.Prepare = func(context.Context, *session.Session) error { // it is called only for a new sandbox
		return fmt.Errorf("its files are lost: %w", backend.ErrLost)
	}
	s, _, err := r.openAsIs(ctx, r.scope().Key(name), req)
	return s, err
}

func (r *run) restoreSandbox(ctx context.Context, name string) error {
	s, err := r.reopen(ctx, name, named(name))
	if err != nil {
		return err
	}
	if err := s.Rollback(ctx, r.checkpoint.Name); err != nil {
		return err
	}
	return dropLater(ctx, s, r.checkpoint.Name)
}

// dropLater removes the run's snapshots newer than a checkpoint, because they belong to undone steps.
func dropLater(ctx context.Context, s *session.Session, name string) error {
	list, _, err := s.Snapshots(ctx)
	if err != nil {
		return err
	}
	later := false
	for _, snap := range list {
		if later && rules.IsRunSnapshot(snap.Name) {
			if err := s.RemoveSnapshot(ctx, snap.Name); err != nil {
				return err
			}
		}
		later = later || snap.Name == name
	}
	return nil
}
