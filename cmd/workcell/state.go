package main

import (
	"context"
	"fmt"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/state"
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
