package workflow

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/session"
)

// A checkpoint is a snapshot of each of the run's sandboxes, of the same name, and the end of a step in the journal
// that names them. A run that goes back to before a step ends what it did since in both: the sandboxes are rolled back,
// and the entry with which it resumes says behind which one it goes on.

// ErrNoCheckpoint: a run cannot go back to before a step.
var ErrNoCheckpoint = errors.New("no checkpoint before the step")

// Checkpoint is what is kept of a run's sandboxes at the end of a step.
type Checkpoint struct {
	Name      string   `json:"name"`                // of the snapshots
	Sandboxes []string `json:"sandboxes,omitempty"` // their names in the run; those that are missing were not there
}

// checkpoint keeps the run's sandboxes as they are at the end of a step of the run's own sequence; nil where that is
// not asked for.
func (ex *execution) checkpoint(ctx context.Context) (*Checkpoint, error) {
	r := ex.run
	if !r.wf.Checkpoints || r.manager == nil || r.opts.Within != nil || ex.seq.outer != nil || ctx.Err() != nil {
		return nil, nil
	}
	c := &Checkpoint{Name: fmt.Sprintf("%s%s.%d", rules.Checkpoint, ex.id, ex.visit)}
	for _, s := range r.manager.InScope(r.scope().Scope()) {
		name := s.Key().Name
		if rules.IsIsolated(name) { // it belongs to one step alone, which is over
			continue
		}
		if err := keepSnapshot(ctx, s, c.Name); err != nil {
			return nil, &Error{Code: fallbackCode(ex.typ), Message: fmt.Sprintf("cannot create a checkpoint: %v", err), Err: err, Final: true}
		}
		c.Sandboxes = append(c.Sandboxes, name)
	}
	slices.Sort(c.Sandboxes)
	return c, nil
}

// keepSnapshot makes a snapshot, in the place of one that a process made which died before it could say so, and of the
// oldest one of a run's where there are too many.
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

// makeRoom removes a snapshot of that name, and the oldest one of a run's where there are too many.
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

// History returns the entries that count: a run that went back to before a step has undone those behind it.
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

// Before returns the part of a run's journal that is left when it goes back to before the latest visit of a step of its
// own sequence, and the state of its sandboxes then; ErrNoCheckpoint when the step was not reached, or nothing was kept
// before it.
func Before(entries []Entry, step string) ([]Entry, *Checkpoint, error) {
	entries = History(entries)
	at := -1
	for i, e := range entries {
		// A visit of several attempts begins with the first.
		if e.Path == step && e.Kind == EventStepStarted && !e.Repeats && e.Attempt == 1 {
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

// latest returns the state of a run's sandboxes at the end of a journal.
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
	return &Checkpoint{}, nil // the first step
}

// owed returns the checkpoint to which a run was to go back when its process died; nil for none. No step began since.
func owed(entries []Entry) (*Checkpoint, error) {
	for i := len(entries) - 1; i > 0 && entries[i].Kind == EventRunResumed; i-- {
		if entries[i].Behind > 0 {
			return latest(History(entries))
		}
	}
	return nil, nil
}

// ResumeFrom is Resume from before the latest visit of a step of the workflow's own sequence, in the state that its
// sandboxes had then. The run must have been made with `checkpoints: true`, and may have failed: such a run has no end
// in its journal. What it did from that step on is undone and done again. ErrNoCheckpoint when there is nothing to go
// back to.
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

// goBack has the run begin with the state of a checkpoint.
func (r *run) goBack(c *Checkpoint) {
	if r.checkpoint = c; c != nil {
		r.base.OnAdopt = nil // a rollback ends all commands
	}
}

// restorable checks that the run can go back, before what comes later is lost from its journal.
func (r *run) restorable(ctx context.Context) error {
	if r.checkpoint == nil || r.manager == nil || r.opts.Within != nil {
		return nil
	}
	for _, name := range r.checkpoint.Sandboxes {
		s, err := r.reopen(ctx, name)
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
	return &Error{Code: codeInternal, Message: fmt.Sprintf("cannot restore sandbox %s: %v", name, err), Err: err, Final: true}
}

// restore makes the run's sandboxes what they were at a checkpoint. Those that were not there then go.
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

// reopen opens a sandbox that the run had.
func (r *run) reopen(ctx context.Context, name string) (*session.Session, error) {
	req := r.base
	req.Prepare = nil
	if req.Image == "" { // of one that is gone, which is an error
		wish.DefaultImage(&req, frontmatter.RuntimeBash)
	}
	s, created, err := r.openAsIs(ctx, r.scope().Key(name), req)
	if err == nil && created {
		err = errors.Join(fmt.Errorf("its files are lost: %w", backend.ErrLost), s.Close(ctx))
	}
	return s, err
}

func (r *run) restoreSandbox(ctx context.Context, name string) error {
	s, err := r.reopen(ctx, name)
	if err != nil {
		return err
	}
	if err := s.Rollback(ctx, r.checkpoint.Name); err != nil {
		return err
	}
	return dropLater(ctx, s, r.checkpoint.Name)
}

// dropLater removes what the run kept behind a checkpoint: it is of what has been undone.
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
