//go:build no_postgres

package state

import (
	"context"
	"errors"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// errNoPostgres is the error for a database in builds without PostgreSQL.
var errNoPostgres = hint.New(hint.Unavailable,
	errors.New("PostgreSQL is not included in this build (build tag no_postgres)"),
	"use a workcell build that includes it, or remove --state and WORKCELL_STATE")

func (Place) openSharedRecords(context.Context) (Records, error) { return nil, errNoPostgres }

func (Place) openSharedJournal(context.Context, bool) (runstore.Store, error) {
	return nil, errNoPostgres
}

func (Place) awaitSharedEnd(context.Context, string) error { return errNoPostgres }

func (Place) claimShared(context.Context, string) (func() error, bool, error) {
	return nil, false, errNoPostgres
}

func sharedPasses(error) bool { return false }

func sharedHint(error) string { return "" }

// AwaitLost waits until ctx is done, because no other process takes over records in a file.
func AwaitLost(ctx context.Context, _ Records, _ string, _ func(error)) { <-ctx.Done() }
