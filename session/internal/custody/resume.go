package custody

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/record"
)

// HandoverPause is the polling interval for another process's sandbox.
const HandoverPause = 50 * time.Millisecond

// Suspend stops the sandbox of one of this manager's records and makes the record ownerless. Without an engineID, it
// only updates the record. If the sandbox cannot be stopped, the next sweep tries again. If the record cannot be
// written, the sandbox may have another owner, so Suspend does not stop it.
func (k *Keeper) Suspend(ctx context.Context, rec record.Record, engineID string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, Lifetimes.Removal)
	defer cancel()
	if engineID != "" {
		k.Log.InfoContext(ctx, "stopping an idle sandbox", "sandbox", rec.ID, "key", rec.Key.String())
		if err = k.Store.Update(ctx, rec); err == nil {
			err = sanitize.EngineError(k.Backend.Stop(ctx, engineID))
		}
	}
	rec.Owner, rec.Expires = "", time.Time{}
	if err != nil {
		rec.Expires = k.Now()
	}
	k.Save(rec)
	return err
}

// Resume starts the sandbox of one of this manager's records. It first gives the record a new expiry, to make sure of
// another suspension even if this process dies.
func (k *Keeper) Resume(ctx context.Context, rec *record.Record, engineID string) error {
	NoteUse(rec, k.Now())
	if err := k.Store.Update(ctx, *rec); err != nil {
		return err
	}
	return sanitize.EngineError(k.Backend.Start(ctx, engineID))
}

// EnsureRunning prepares a sandbox for a new connection: it makes sure of a running sandbox and prevents a sweep from
// removing it at this moment. It starts a stopped named sandbox without a running owner. If a running process has the
// sandbox, EnsureRunning waits for a limited time.
func (k *Keeper) EnsureRunning(ctx context.Context, engine backend.Info, key record.Key) (backend.Info, error) {
	for began := time.Now(); ; {
		if engine.State == backend.StatePaused {
			return engine, sandbox.ErrPaused
		}
		rec, err := k.Store.Get(ctx, engine.SessionID)
		running := engine.State == backend.StateRunning
		named := key.Namespace == record.NamespaceUser
		if err != nil || rec.State != record.Ready || !named || running && !rec.Expired(k.Now()) {
			return engine, Runs(engine)
		}
		lives, err := k.Store.Lives(ctx, rec.Owner)
		if err != nil {
			return engine, err
		}
		if !lives || k.Unused(rec) {
			engine, err = k.resumeUnowned(ctx, rec, engine)
			if !errors.Is(err, backend.ErrExists) {
				return engine, err
			}
		}
		if time.Since(began) > Lifetimes.Handover {
			return engine, Runs(engine)
		}
		if !bound.Pause(ctx, HandoverPause) {
			return engine, ctx.Err()
		}
		if engine, _, err = k.Find(ctx, rec.ID); err != nil {
			return engine, err
		}
	}
}

// resumeUnowned starts an ownerless sandbox and restarts the idle timeout. Until then, this manager owns the record, to
// prevent a sweep or an adoption. If another process takes the record first, resumeUnowned returns an error wrapping
// backend.ErrExists.
func (k *Keeper) resumeUnowned(ctx context.Context, rec record.Record, engine backend.Info) (backend.Info, error) {
	rec, err := k.Take(ctx, rec)
	if err != nil {
		return engine, err
	}
	defer k.Done(rec.ID)
	engine, _, err = k.Find(ctx, rec.ID) // a sweep may have just stopped it
	if err == nil && engine.State != backend.StateRunning {
		err = k.Resume(ctx, &rec, engine.ID)
	}
	rec.Owner = ""
	if err == nil {
		engine.State, rec.KeepWorkspace, rec.Reason = backend.StateRunning, false, "" // it is no longer lost
		NoteUse(&rec, k.Now())
	}
	k.Save(rec)
	return engine, err
}

// Runs returns an error wrapping backend.ErrLost if the sandbox is not running.
func Runs(engine backend.Info) error {
	if engine.State != backend.StateRunning {
		return fmt.Errorf("%w: it is %s", backend.ErrLost, engine.State)
	}
	return nil
}
