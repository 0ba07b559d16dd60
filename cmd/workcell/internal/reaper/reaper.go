package reaper

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
)

// Bounds of a reaper's sleep, which ends when something is due. Other processes may change when that is.
const (
	minNap = time.Second
	maxNap = session.DefaultReapEvery
)

// patience is how long a reaper stays when it cannot read which sandboxes to wait for.
const patience = 24 * time.Hour

// Reaper sweeps one engine. It keeps nothing open between two rounds.
type Reaper struct {
	State  state.Place
	Engine string                                                // as in records
	Open   func(context.Context) (backend.SandboxBackend, error) // opens the engine
	Logger *slog.Logger

	pause func(context.Context, time.Duration) error // waits, at most until the context ends; only tests set it
}

// Run waits for the end of the owner, and then sweeps for as long as time takes something away. Of several reapers of
// an engine one does: the others have nothing that it would not see.
func (r *Reaper) Run(ctx context.Context, owner string) error {
	r.pause = pause
	debug.FreeOSMemory() // it may be long until there is something to do
	if err := r.State.AwaitEnd(ctx, owner); err != nil {
		return err
	}
	for more := true; more && r.State.There(); {
		leave, held, err := r.State.Claim(ctx, "reaper"+strings.ReplaceAll(r.Engine, "-", ""))
		if held || err != nil {
			return err
		}
		err = r.sweepOn(ctx)
		if err = errors.Join(err, leave()); err != nil {
			return err
		}
		if _, more, err = r.look(ctx, false); err != nil { // one that came just before held was no more, has gone again
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sweepOn sweeps until nothing is left that time takes away.
func (r *Reaper) sweepOn(ctx context.Context) error {
	nap, read := minNap, time.Now()
	for {
		at, more, err := r.look(ctx, true)
		switch {
		case err == nil && !more:
			return nil
		case err == nil:
			read = time.Now()
		case ctx.Err() != nil || !state.Passes(err) || time.Since(read) > patience:
			return err
		}
		wait := time.Until(at)
		if wait > 0 {
			nap = minNap
			wait = max(wait, nap)
		} else { // it is used, or the engine does not do it
			wait, nap = nap, min(2*nap, maxNap)
		}
		debug.FreeOSMemory()
		if err := r.pause(ctx, min(wait, maxNap)); err != nil {
			return err
		}
	}
}

// look returns when there is something to sweep; before that it sweeps if it is told to. An engine that cannot be used
// is no error: the records say how long that matters.
func (r *Reaper) look(ctx context.Context, sweep bool) (at time.Time, more bool, err error) {
	if !r.State.There() { // it is not made again for what may be left
		return at, false, nil
	}
	store, err := r.State.OpenRecords(ctx)
	if err != nil {
		return at, false, err
	}
	defer store.Close() // every change was on the disk before it was acknowledged
	if sweep {
		if err := r.sweep(ctx, store); err != nil {
			r.Logger.Info("cannot run the cleanup sweep now", "error", err)
		}
	}
	return nextDue(ctx, store, r.Engine, "")
}

// sweep does what every command does at its start.
func (r *Reaper) sweep(ctx context.Context, store state.Records) error {
	instance, err := r.State.ReadInstance(ctx, store)
	if err != nil {
		return err
	}
	driver, err := r.Open(ctx)
	if err != nil {
		return err
	}
	defer driver.Close() // nothing of it is open
	m, err := session.NewManager(driver, &session.Options{
		Instance: instance, Store: store, Engine: r.Engine, ReapEvery: -1, Logger: r.Logger,
	})
	if err != nil {
		return err
	}
	return errors.Join(admin.Sweep(ctx, m), m.Detach(ctx))
}

// nextDue returns when a sweep of an engine will have something to do next; ok is false when time will bring it
// nothing. An owner besides is taken for dead.
func nextDue(ctx context.Context, store state.Records, engine, besides string) (at time.Time, ok bool, err error) {
	recs, err := store.List(ctx)
	if err != nil {
		return at, false, err
	}
	now := time.Now()
	for _, rec := range recs {
		due, will := admin.ReclaimAt(rec, now)
		if !will || rec.Engine != engine || ok && !due.Before(at) {
			continue
		}
		if rec.Owner != besides {
			lives, err := store.Lives(ctx, rec.Owner)
			if err != nil {
				return at, false, err
			}
			if lives {
				continue // that one's process has a reaper of its own
			}
		}
		at, ok = due, true
	}
	return at, ok, nil
}
