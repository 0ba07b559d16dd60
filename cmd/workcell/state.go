package main

import (
	"context"
	"fmt"
	"maps"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/state"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

// stateUse is how much a command needs the records of sandboxes.
type stateUse int

const (
	stateNeeded stateUse = iota // nothing may be made that is not recorded
	stateWanted                 // without them the labels on the sandboxes must do
	stateUnused
)

// stateDir returns the directory for what must outlive a command.
func (a *app) stateDir() (state.Dir, error) { return state.Locate(a.env, a.stateDirFlag) }

// openStore opens the records of sandboxes; nil when the command does without.
func (a *app) openStore(ctx context.Context, dir state.Dir, use stateUse) (*sqlitestore.Store, error) {
	if use == stateUnused {
		return nil, nil
	}
	store, err := sqlitestore.Open(ctx, dir.File())
	if err != nil && use == stateWanted && ctx.Err() == nil {
		a.withoutRecords(err)
		return nil, nil
	}
	return store, err
}

// withoutRecords warns that a command does without the records: with a full disk, a directory that cannot be written or a
// damaged file it must still be possible to see and remove sandboxes.
func (a *app) withoutRecords(err error) {
	fmt.Fprintf(a.stderr, "workcell: going by the sandboxes' labels alone: %s\n", sanitize.Line(err.Error()))
}

// openJournal opens the journals of runs.
func (a *app) openJournal(ctx context.Context) (*sqlitejournal.Journal, error) {
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	return sqlitejournal.Open(ctx, dir.File())
}

// saveEnv keeps what `sessions open -e` set: later commands come from other processes. It lies in the state file, which is
// the user's alone: on the engine others could read it, and what lies in the sandbox belongs to the code there.
func (a *app) saveEnv(env map[string]string) func(context.Context, *session.Session) error {
	if len(env) == 0 {
		return nil
	}
	return func(ctx context.Context, s *session.Session) error { return a.records.AddEnv(ctx, s.ID(), env) }
}

// loadEnv returns the environment of a command: what the sandbox was opened with, and own over it.
func (a *app) loadEnv(ctx context.Context, s *session.Session, own map[string]string) (map[string]string, error) {
	if a.records == nil {
		fmt.Fprintln(a.stderr, "workcell: without what `sessions open -e` may have set, which the records hold")
		return own, nil
	}
	env, err := a.records.Env(ctx, s.ID())
	if err != nil {
		return nil, err
	}
	maps.Copy(env, own)
	return env, nil
}
