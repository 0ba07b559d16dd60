package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/internal/sqlitefile"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
)

// Bounds of a reaper's sleep, which ends when something is due. Other processes may change when that is.
const (
	reaperNap   = time.Second
	reaperSleep = session.DefaultReapEvery
)

// reaperPatience is how long a reaper goes on when it cannot read what there is to wait for.
const reaperPatience = 24 * time.Hour

type reaperOptions struct {
	engine engineFlags
	owner  string
}

// newReaperCmd gives the command that a reaper runs, which is not for people.
func newReaperCmd(a *app) *cobra.Command {
	o := &reaperOptions{}
	cmd := &cobra.Command{
		Use:    "reaper --owner ID",
		Short:  "Remove what another process leaves, when it has ended",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) },
	}
	o.engine.addTo(cmd)
	cmd.Flags().StringVar(&o.owner, "owner", "", "whose end to wait for")
	return cmd
}

// run waits for the end of the owner, and then sweeps for as long as time takes something away. Of several reapers of an
// engine one does: the others have nothing that it would not see.
func (o *reaperOptions) run(ctx context.Context, a *app) error {
	if o.owner == "" || o.engine.backend == "" || !filepath.IsAbs(a.stateDirFlag) {
		return usageError(errors.New("a reaper needs --owner, --backend and --state-dir"), "workcell starts it by itself")
	}
	r := &reaper{pause: pause, a: a, flags: o.engine, engine: a.engines().ID(o.engine.backend), state: filepath.Join(a.stateDirFlag, stateFile)}
	debug.FreeOSMemory() // it may be long until there is something to do
	if err := sqlitefile.AwaitEnd(ctx, r.state, o.owner); err != nil {
		return err
	}
	for more := true; more && r.there(); {
		leave, held, err := sqlitefile.Claim(r.state, "reaper"+strings.ReplaceAll(r.engine, "-", ""))
		if held || err != nil {
			return err
		}
		err = r.sweepOn(ctx)
		if err = errors.Join(err, leave()); err != nil {
			return err
		}
		if _, more, err = r.look(ctx, false); err != nil { // who came just before held was no more, has gone again
			return err
		}
	}
	return nil
}

// reaper sweeps one engine. It keeps nothing open between two rounds.
type reaper struct {
	a      *app
	flags  engineFlags
	engine string                                     // as in records
	state  string                                     // the state file
	pause  func(context.Context, time.Duration) error // waits, at most until the context ends
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
func (r *reaper) sweepOn(ctx context.Context) error {
	nap, read := reaperNap, time.Now()
	for {
		at, more, err := r.look(ctx, true)
		switch {
		case err == nil && !more:
			return nil
		case err == nil:
			read = time.Now()
		case ctx.Err() != nil || !passes(err) || time.Since(read) > reaperPatience:
			return err
		}
		wait := time.Until(at)
		if wait > 0 {
			nap = reaperNap
			wait = max(wait, nap)
		} else { // it is used, or the engine does not do it
			wait, nap = nap, min(2*nap, reaperSleep)
		}
		debug.FreeOSMemory()
		if err := r.pause(ctx, min(wait, reaperSleep)); err != nil {
			return err
		}
	}
}

// passes tells whether a state file may be read later that cannot be read now.
func passes(err error) bool {
	return errors.Is(err, sqlitefile.ErrBusy) || errors.Is(err, sqlitefile.ErrFull)
}

// look tells when there is something to sweep; before that it sweeps if it is told to. An engine that cannot be used is no
// error: the records say how long that matters.
func (r *reaper) look(ctx context.Context, sweep bool) (at time.Time, more bool, err error) {
	if !r.there() {
		return at, false, nil
	}
	store, err := sqlitestore.Open(ctx, r.state)
	if err != nil {
		return at, false, err
	}
	defer store.Close() // every change was on the disk before it was acknowledged
	if sweep {
		if err := r.sweep(ctx, store); err != nil {
			r.a.logger().Info("cannot sweep now", "error", err)
		}
	}
	return nextTurn(ctx, store, r.engine, "")
}

// sweep does what every command does at its start.
func (r *reaper) sweep(ctx context.Context, store *sqlitestore.Store) error {
	instance, err := readInstance(filepath.Join(filepath.Dir(r.state), instanceFile))
	if err != nil {
		return err
	}
	driver, err := r.a.engines().Open(ctx, r.a.backendName(r.flags))
	if err != nil {
		return err
	}
	defer driver.Close() // nothing of it is open
	m, err := session.NewManager(driver, &session.Options{
		Instance: instance, Store: store, Engine: r.engine, ReapEvery: -1, Logger: r.a.logger(),
	})
	if err != nil {
		return err
	}
	return errors.Join(m.Sweep(ctx), m.Detach(ctx))
}

// there tells whether there is still a state file. It is not made anew for what may be left.
func (r *reaper) there() bool {
	_, err := os.Stat(r.state)
	return err == nil
}
