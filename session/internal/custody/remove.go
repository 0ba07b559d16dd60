package custody

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Delete removes all that the engine has of a record that is this manager's, and closes the record. What cannot be
// removed before ctx ends belongs to nobody again, for the next round or another process.
func (k *Keeper) Delete(ctx context.Context, rec record.Record) error {
	ready := rec.State == record.Ready
	rec.KeepWorkspace = false // it was for the next sandbox of the key, which there will not be
	missed := !rec.Ended && rec.Key.Namespace == record.NamespaceWorkflow && rec.EngineID != ""
	if rec.State.Live() {
		rec.Expires = k.Now()
	}
	if rec.State != record.Closed {
		rec.State = record.Removing
	}
	if k.Save(rec) { // else the key is free, and nobody adopts it
		return ErrOvertaken
	}
	there, err := k.removeAll(ctx, rec)
	rec.Owner = k.NoOwner()
	switch {
	case err == nil && missed: // who resumes the run must hear of it
		rec.State, rec.Expires = record.Closed, k.Now().Add(Lifetimes.Missed)
	case err == nil && ready && !there: // if it comes back, it is found as one that has no record
		return k.Store.Delete(ctx, rec.ID)
	case err == nil:
		rec.State, rec.Expires = record.Closed, k.Now().Add(Lifetimes.Remembered)
	}
	k.Save(rec)
	return err
}

// removeAll removes whatever the engine has under a record's id, and reports whether there was anything.
func (k *Keeper) removeAll(ctx context.Context, rec record.Record) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, Lifetimes.Removal)
	defer cancel()
	found, err := k.Backend.List(ctx, backend.Filter{Instance: k.Instance, SessionID: rec.ID})
	if err != nil {
		return false, EngineError(err)
	}
	for _, engine := range found {
		if engine.SessionID != rec.ID || engine.Instance != k.Instance {
			continue
		}
		there = true
		if err := k.Backend.Remove(ctx, engine.ID, backend.RemoveOptions{Volumes: true}); err != nil {
			return there, EngineError(err)
		}
	}
	if !there {
		err = k.RemoveRemains(ctx, rec, true)
	}
	if !there && err == nil {
		err = k.removeWorkspace(ctx, rec.ID)
	}
	return there, err
}

// RemoveRemains removes what the engine may have of a sandbox that it does not list, because something else removed it.
func (k *Keeper) RemoveRemains(ctx context.Context, rec record.Record, volumes bool) error {
	if rec.EngineID == "" {
		return nil
	}
	info, err := k.Backend.Get(ctx, rec.EngineID)
	if err == nil && (info.Instance != k.Instance || info.SessionID != rec.ID) {
		return fmt.Errorf("%w: the engine's sandbox of record %s belongs to another instance", backend.ErrExists, rec.ID)
	}
	return EngineError(k.Backend.Remove(ctx, rec.EngineID, backend.RemoveOptions{Volumes: volumes}))
}

// removeWorkspace removes the workspace of a session that has no sandbox: the process that removed it died before the
// rest was gone, or the workspace was kept for another sandbox that was never made.
func (k *Keeper) removeWorkspace(ctx context.Context, id string) error {
	err := k.Backend.RemoveWorkspace(ctx, k.Instance, id)
	if errors.Is(err, backend.ErrUnsupported) {
		return nil
	}
	return EngineError(err)
}

// RemoveEngine removes a sandbox from the engine, even if the caller's context ends.
func (k *Keeper) RemoveEngine(ctx context.Context, engineID string, volumes bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Lifetimes.Removal)
	defer cancel()
	return EngineError(k.Backend.Remove(ctx, engineID, backend.RemoveOptions{Volumes: volumes}))
}

// KeepWorkspace removes a sandbox but for its workspace, which then has no owner and waits for the next opener of the
// key.
func (k *Keeper) KeepWorkspace(ctx context.Context, rec record.Record, engineID string) error {
	kept := rec
	kept.LastUsed, kept.Expires, kept.Reason = k.Now(), k.Now().Add(Lifetimes.Workspace), string(owner.Removed)
	kept.State, kept.Owner, kept.KeepWorkspace = record.Ready, k.Owner, true
	err := k.Store.Update(ctx, kept)
	if err == nil && engineID != "" {
		err = k.RemoveEngine(ctx, engineID, false)
	}
	if err != nil {
		kept = rec
	}
	if kept.Owner == k.Owner {
		kept.Owner = ""
	}
	k.Save(kept)
	return err
}

// CanKeep refuses to keep a workspace that would end with its sandbox, or that nobody could find again.
func (k *Keeper) CanKeep(ctx context.Context, engine backend.Info) error {
	_, known, err := k.LookForWorkspace(ctx, engine.SessionID)
	if err == nil && (!known || !k.KeepsFiles(engine.Limits, engine.Workspace)) {
		err = fmt.Errorf("the workspace cannot be kept without the sandbox: %w", backend.ErrUnsupported)
	}
	return err
}

// KeepsFiles reports whether the files of such a sandbox survive its processes.
func (k *Keeper) KeepsFiles(limits backend.Limits, enforcement backend.Enforcement) bool {
	return k.Backend.Capabilities().Persistent && (limits.WorkspaceBytes == 0 || enforcement != backend.WorkspaceMemory)
}

// LookForWorkspace reports whether the engine, which does not have a sandbox, has its workspace; known is false where
// nobody knows.
func (k *Keeper) LookForWorkspace(ctx context.Context, id string) (there, known bool, err error) {
	there, err = k.Backend.HasWorkspace(ctx, k.Instance, id)
	if errors.Is(err, backend.ErrUnsupported) {
		return false, false, nil
	}
	return there, err == nil, EngineError(err)
}

// Suspend stops a sandbox whose record is this manager's, which belongs to nobody then. One that cannot be stopped
// now, or whose record cannot be written, so that it may be another's, is found by the next sweep; without an
// engineID there is none to stop.
func (k *Keeper) Suspend(ctx context.Context, rec record.Record, engineID string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, Lifetimes.Removal)
	defer cancel()
	if engineID != "" {
		k.Log.InfoContext(ctx, "stopping an idle sandbox", "sandbox", rec.ID, "key", rec.Key.String())
		if err = k.Store.Update(ctx, rec); err == nil {
			err = EngineError(k.Backend.Stop(ctx, engineID))
		}
	}
	rec.Owner, rec.Expires = "", time.Time{}
	if err != nil {
		rec.Expires = k.Now()
	}
	k.Save(rec)
	return err
}

// Resume starts a sandbox whose record is this manager's. That is updated first to one that may run, so that whatever
// follows, the end of this process too, it is suspended again.
func (k *Keeper) Resume(ctx context.Context, rec *record.Record, engineID string) error {
	NoteUse(rec, k.Now())
	if err := k.Store.Update(ctx, *rec); err != nil {
		return err
	}
	return EngineError(k.Backend.Start(ctx, engineID))
}
