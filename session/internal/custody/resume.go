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

// HandoverPause is the time between two looks at a sandbox that another process has.
const HandoverPause = 50 * time.Millisecond

// Suspend stops a sandbox whose record is this manager's, which belongs to nobody then. One that cannot be stopped
// now, or whose record cannot be written, so that it may be another's, is found by the next sweep; without an
// engineID there is none to stop.
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

// Resume starts a sandbox whose record is this manager's. That is updated first to one that may run, so that whatever
// follows, the end of this process too, it is suspended again.
func (k *Keeper) Resume(ctx context.Context, rec *record.Record, engineID string) error {
	NoteUse(rec, k.Now())
	if err := k.Store.Update(ctx, *rec); err != nil {
		return err
	}
	return sanitize.EngineError(k.Backend.Start(ctx, engineID))
}

// EnsureRunning prepares a sandbox for a new connection, so that it runs and no sweep removes it at this moment. It
// starts a stopped named sandbox that no running process has. While a running process has the sandbox, it waits for a
// while.
func (k *Keeper) EnsureRunning(ctx context.Context, engine backend.Info, key record.Key) (backend.Info, error) {
	for began := time.Now(); ; {
		if engine.State == backend.StatePaused {
			return engine, sandbox.ErrPaused
		}
		rec, err := k.Store.Get(ctx, engine.SessionID)
		running := engine.State == backend.StateRunning
		named := key.Namespace == record.NamespaceUser
		if err != nil || rec.State != record.Ready || !named || running && !rec.Expired(k.Now()) {
			return engine, runs(engine)
		}
		lives, err := k.Store.Lives(ctx, rec.Owner)
		if err != nil {
			return engine, err
		}
		if !lives {
			engine, err = k.resumeUnowned(ctx, rec, engine)
			if !errors.Is(err, backend.ErrExists) {
				return engine, err
			}
		}
		if time.Since(began) > Lifetimes.Handover {
			return engine, runs(engine)
		}
		if !bound.Pause(ctx, HandoverPause) {
			return engine, ctx.Err()
		}
		if engine, _, err = k.Find(ctx, rec.ID); err != nil {
			return engine, err
		}
	}
}

// resumeUnowned starts a sandbox that nobody has and restarts its idle time. Meanwhile its record is this manager's,
// so that nobody sweeps or adopts it; backend.ErrExists when somebody was faster.
func (k *Keeper) resumeUnowned(ctx context.Context, rec record.Record, engine backend.Info) (backend.Info, error) {
	rec, err := k.Store.Take(ctx, rec.ID, rec.Owner, k.Owner)
	if err != nil {
		return engine, err
	}
	engine, _, err = k.Find(ctx, rec.ID) // it may have been stopped just before
	if err == nil && engine.State != backend.StateRunning {
		err = k.Resume(ctx, &rec, engine.ID)
	}
	rec.Owner = ""
	if err == nil {
		engine.State = backend.StateRunning
		NoteUse(&rec, k.Now())
	}
	k.Save(rec)
	return engine, err
}

// runs is backend.ErrLost for a sandbox that does not run.
func runs(engine backend.Info) error {
	if engine.State != backend.StateRunning {
		return fmt.Errorf("%w: it is %s", backend.ErrLost, engine.State)
	}
	return nil
}
