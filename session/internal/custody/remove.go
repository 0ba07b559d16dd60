package custody

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Delete removes the sandbox and workspace of one of this manager's records and closes the record. If the removal does
// not finish before ctx ends, the record becomes ownerless, to allow the next round or another process to complete it.
func (k *Keeper) Delete(ctx context.Context, rec record.Record) error {
	ready := rec.State == record.Ready
	rec.KeepWorkspace = false // the key will have no next sandbox
	if rec.State.Live() {
		rec.Expires = k.Now()
	}
	if rec.State != record.Closed {
		rec.State = record.Removing
	}
	if k.Save(rec) { // otherwise the key is free and the sandbox cannot be adopted
		return ErrOvertaken
	}
	there, err := k.removeAll(ctx, rec)
	rec.Owner = k.NoOwner()
	switch {
	case err == nil && ready && !there && !missed(rec): // if it reappears, it is found as a sandbox without a record
		return k.Store.Delete(ctx, rec.ID)
	case err == nil:
		k.SaveClosed(rec)
	default:
		k.Save(rec)
	}
	return err
}

// removeAll removes all parts of a record's sandbox from the engine. It reports whether anything existed.
func (k *Keeper) removeAll(ctx context.Context, rec record.Record) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, Lifetimes.Removal)
	defer cancel()
	found, err := k.Backend.List(ctx, backend.Filter{Instance: k.Instance, SessionID: rec.ID})
	if err != nil {
		return false, sanitize.EngineError(err)
	}
	for _, engine := range found {
		if engine.SessionID != rec.ID || engine.Instance != k.Instance {
			continue
		}
		there = true
		if err := k.Backend.Remove(ctx, engine.ID, backend.RemoveOptions{Volumes: true}); err != nil {
			return there, sanitize.EngineError(err)
		}
	}
	if !there {
		err = k.RemoveRemains(ctx, rec, true)
	}
	if !there && err == nil {
		err = k.RemoveWorkspace(ctx, rec.ID)
	}
	return there, err
}

// RemoveRemains removes the remains of a sandbox after a removal by another program.
func (k *Keeper) RemoveRemains(ctx context.Context, rec record.Record, volumes bool) error {
	if rec.EngineID == "" {
		return nil
	}
	switch info, err := k.Backend.Get(ctx, rec.EngineID); {
	case err != nil && !errors.Is(err, backend.ErrNotFound): // the owner is unknown
		return sanitize.EngineError(err)
	case err == nil && (info.Instance != k.Instance || info.SessionID != rec.ID):
		return fmt.Errorf("%w: the engine's sandbox of record %s belongs to another instance", backend.ErrExists, rec.ID)
	}
	return sanitize.EngineError(k.Backend.Remove(ctx, rec.EngineID, backend.RemoveOptions{Volumes: volumes}))
}

// RemoveWorkspace removes the workspace of a session without a sandbox. Either a process died between the two removals,
// or the workspace was kept for a sandbox and never used.
func (k *Keeper) RemoveWorkspace(ctx context.Context, id string) error {
	err := k.Backend.RemoveWorkspace(ctx, k.Instance, id)
	if errors.Is(err, backend.ErrUnsupported) {
		return nil
	}
	return sanitize.EngineError(err)
}

// RemoveEngine removes a sandbox from the engine, even if the caller's context ends.
func (k *Keeper) RemoveEngine(ctx context.Context, engineID string, volumes bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Lifetimes.Removal)
	defer cancel()
	return sanitize.EngineError(k.Backend.Remove(ctx, engineID, backend.RemoveOptions{Volumes: volumes}))
}

// KeepWorkspace removes a sandbox but keeps the workspace. The record then has no owner, and the next opener of the key
// gets the workspace.
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

// CanKeep returns an error if the workspace would be lost with the sandbox or could not be found again.
func (k *Keeper) CanKeep(ctx context.Context, engine backend.Info) error {
	_, known, err := k.LookForWorkspace(ctx, engine.SessionID)
	if err == nil && (!known || !k.KeepsFiles(engine.Limits, engine.Workspace)) {
		err = fmt.Errorf("the workspace cannot be kept without the sandbox: %w", backend.ErrUnsupported)
	}
	return err
}

// KeepsFiles reports whether the files of a sandbox with these limits survive the processes.
func (k *Keeper) KeepsFiles(limits backend.Limits, enforcement backend.Enforcement) bool {
	return k.Backend.Capabilities().Persistent && (limits.WorkspaceBytes == 0 || enforcement != backend.WorkspaceMemory)
}

// LookForWorkspace reports whether the workspace of a removed sandbox exists. If the engine cannot tell, known is
// false.
func (k *Keeper) LookForWorkspace(ctx context.Context, id string) (there, known bool, err error) {
	there, err = k.Backend.HasWorkspace(ctx, k.Instance, id)
	if errors.Is(err, backend.ErrUnsupported) {
		return false, false, nil
	}
	return there, err == nil, sanitize.EngineError(err)
}

// RemoveScope removes the sandboxes of a scope without a running owner, and returns their ids. If a process is about to
// release a sandbox, RemoveScope tries again.
func (k *Keeper) RemoveScope(ctx context.Context, scope record.Scope) (removed []string, err error) {
	if err := k.RecordFound(ctx, backend.Filter{}, scope); err != nil {
		return nil, err
	}
	for began := time.Now(); ; {
		recs, err := k.Store.List(ctx, record.Creating, record.Ready, record.Removing)
		if err != nil {
			return removed, err
		}
		var errs []error
		for _, rec := range recs {
			if rec.Key.Scope() != scope || rec.Engine != k.Engine {
				continue
			}
			if err := k.EndUnowned(ctx, rec, owner.Removed); err != nil {
				errs = append(errs, err)
				continue
			}
			removed = append(removed, rec.ID)
		}
		err = errors.Join(errs...)
		if !errors.Is(err, ErrInTransition) || time.Since(began) > Lifetimes.Transition {
			return removed, err
		}
		if !bound.Pause(ctx, HandoverPause) {
			return removed, ctx.Err()
		}
	}
}

// EndUnowned handles an event for the sandbox of a record without a living owner, in the same way as a session.
func (k *Keeper) EndUnowned(ctx context.Context, rec record.Record, event owner.Event) error {
	rec, err := k.TakeUnowned(ctx, rec)
	if err != nil {
		return err
	}
	defer k.Done(rec.ID)
	ctx, rec.Reason, rec.Ended = context.WithoutCancel(ctx), string(event), event == owner.RunEnded
	if event == owner.Removed {
		return k.Delete(ctx, rec)
	}
	end, _ := owner.On(Facts(rec, ""), event)
	rec.State, rec.KeepWorkspace, rec.Expires = record.Removing, false, k.Now()
	if end.To != owner.Retained {
		return k.Delete(ctx, rec)
	}
	rec.Owner, rec.Expires = "", k.Now().Add(rec.Retention)
	k.Save(rec)
	return nil
}

// Remove stops and deletes a sandbox of another owner. It updates the record first. If this process dies before the
// end, a later sweep removes the rest, except for a kept workspace. If ended is true, Gone does not report the removal.
func (k *Keeper) Remove(ctx context.Context, id string, volumes bool, why owner.Event, ended bool) error {
	engine, key, err := k.Find(ctx, id)
	switch {
	case errors.Is(err, backend.ErrNotFound) && record.ValidSandboxID(id):
		return k.removeVanished(ctx, id, volumes, ended)
	case err != nil && !(errors.Is(err, errUnreadable) && volumes):
		return err
	case !volumes:
		return k.removeButWorkspace(ctx, engine, key)
	}
	return k.removeRecorded(ctx, engine, why, ended)
}

// RemoveHeld removes another process's sandbox, or the remaining workspace. If neither exists, RemoveHeld returns nil.
func (k *Keeper) RemoveHeld(ctx context.Context, id string, why owner.Event) error {
	err := k.Remove(context.WithoutCancel(ctx), id, true, why, why != owner.Idle)
	if errors.Is(err, backend.ErrNotFound) {
		return nil
	}
	return err
}

// removeRecorded removes a sandbox from the engine, with the workspace.
func (k *Keeper) removeRecorded(ctx context.Context, engine backend.Info, why owner.Event, ended bool) error {
	id := engine.SessionID
	before, err := k.Store.Get(ctx, id)
	rec, known := before, err == nil // a store failure does not prevent the removal
	rec.Ended = before.Ended || ended
	marked := known && before.State == record.Ready
	if marked {
		rec.State, rec.Expires, rec.KeepWorkspace, rec.Reason = record.Removing, k.Now(), false, string(why)
		k.Save(rec)
	}
	if err := k.RemoveEngine(ctx, engine.ID, true); err != nil {
		if marked {
			k.Save(before)
		}
		return err
	}
	if known {
		k.SaveClosed(rec)
	}
	return nil
}

// removeButWorkspace removes a sandbox of another owner and keeps the workspace.
func (k *Keeper) removeButWorkspace(ctx context.Context, engine backend.Info, key record.Key) error {
	if err := k.CanKeep(ctx, engine); err != nil {
		return err
	}
	if err := k.RecordFound(ctx, backend.Filter{Key: engine.Key}, key.Scope()); err != nil {
		return err
	}
	rec, err := k.Store.Get(ctx, engine.SessionID)
	if err != nil {
		return err
	}
	if rec.State == record.Creating {
		return ErrInTransition
	}
	return k.KeepWorkspace(ctx, rec, engine.ID)
}

// removeVanished removes the remains of a sandbox missing on the engine. If volumes is false, it keeps the workspace.
func (k *Keeper) removeVanished(ctx context.Context, id string, volumes, ended bool) error {
	rec, err := k.Store.Get(ctx, id)
	if errors.Is(err, backend.ErrNotFound) || err == nil && !k.LeavesWorkspace(rec) {
		return ErrNoSandbox
	}
	if err != nil {
		return err
	}
	if rec, err = k.TakeUnowned(ctx, rec); err != nil {
		return err
	}
	defer k.Done(id)
	if !volumes {
		return k.KeepWorkspace(ctx, rec, rec.EngineID)
	}
	rec.State, rec.Expires, rec.Reason, rec.Ended = record.Removing, k.Now(), string(owner.Removed), ended
	return k.Delete(context.WithoutCancel(ctx), rec)
}
