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
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
)

// Limits of a reaper's sleep. It sleeps until the next sandbox expires, but other processes may change that time.
const (
	minNap = time.Second
	maxNap = session.DefaultReapEvery
)

// patience is the time after which a reaper exits if it cannot read the records.
const patience = 24 * time.Hour

// Reaper runs the cleanup sweep of one engine. It keeps nothing open between two sweeps.
type Reaper struct {
	State  state.Place
	Engine string                                                // engine ID in the records
	Open   func(context.Context) (backend.SandboxBackend, error) // opens the engine
	Logger *slog.Logger

	pause func(context.Context, time.Duration) bool // bound.Pause if nil
}

// Run waits for the end of the owner. Then it runs sweeps as long as expiring sandboxes remain. If an engine
// has several reapers, one of them continues and the others exit, because they would see the same records.
func (r *Reaper) Run(ctx context.Context, owner string) error {
	if r.pause == nil {
		r.pause = bound.Pause
	}
	debug.FreeOSMemory() // the reaper may have to wait for a long time
	if err := r.retry(ctx, func() error { return r.State.AwaitEnd(ctx, owner) }); err != nil {
		return err
	}
	for more := true; more && r.State.There(); {
		var leave func() error
		var held bool
		err := r.retry(ctx, func() (err error) {
			leave, held, err = r.State.Claim(ctx, "reaper"+strings.ReplaceAll(r.Engine, "-", ""))
			return err
		})
		if held || err != nil {
			return err
		}
		err = r.sweepOn(ctx)
		if err = errors.Join(err, leave()); err != nil {
			return err
		}
		// Another reaper may have exited just before this one could see it, so check again.
		if err = r.retry(ctx, func() (err error) { _, more, err = r.look(ctx, false); return err }); err != nil {
			return err
		}
	}
	return nil
}

// retry calls f until the state is readable, but gives up after patience.
func (r *Reaper) retry(ctx context.Context, f func() error) (err error) {
	for range patience / maxNap {
		if err = f(); err == nil || !state.Passes(err) || !r.pause(ctx, maxNap) {
			break
		}
	}
	return err
}

// sweepOn runs sweeps until no expiring sandbox remains.
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
		} else { // the sandbox is in use, or the engine failed to remove it
			wait, nap = nap, min(2*nap, maxNap)
		}
		debug.FreeOSMemory()
		if !r.pause(ctx, min(wait, maxNap)) {
			return ctx.Err()
		}
	}
}

// look returns the time of the next expiry. If sweep is set, it first runs the cleanup sweep. An unavailable engine is
// not an error, because the records determine how long the reaper waits.
func (r *Reaper) look(ctx context.Context, sweep bool) (at time.Time, more bool, err error) {
	if !r.State.There() { // do not recreate removed state
		return at, false, nil
	}
	store, err := r.State.OpenRecords(ctx)
	if err != nil {
		return at, false, err
	}
	defer store.Close() // every change was written to disk before it was acknowledged
	if sweep {
		if err := r.sweep(ctx, store); err != nil {
			r.Logger.Info("cannot run the cleanup sweep now", "error", err)
		}
	}
	return nextDue(ctx, store, r.Engine, "")
}

// sweep runs the cleanup sweep of every command's start.
func (r *Reaper) sweep(ctx context.Context, store state.Records) error {
	instance, err := r.State.ReadInstance(ctx, store)
	if err != nil {
		return err
	}
	driver, err := r.Open(ctx)
	if err != nil {
		return err
	}
	defer driver.Close() // all sandboxes stay
	m, err := session.NewManager(driver, &session.Options{
		Instance: instance, Store: store, Engine: r.Engine, ReapEvery: -1, Logger: r.Logger,
	})
	if err != nil {
		return err
	}
	return errors.Join(admin.Sweep(ctx, m), m.Detach(ctx))
}

// nextDue returns the next time at which a sweep of the engine has work. ok is false if no sandbox will expire. The
// owner besides counts as dead.
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
				continue // the owner's process has a reaper
			}
		}
		at, ok = due, true
	}
	return at, ok, nil
}
