//go:build !no_postgres

package state

import (
	"context"
	"errors"

	"github.com/workcell-dev/workcell/internal/postgres"
	pgrecord "github.com/workcell-dev/workcell/session/record/postgres"
	"github.com/workcell-dev/workcell/workflow/pgjournal"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

func (p Place) openSharedRecords(ctx context.Context) (Records, error) {
	store, err := pgrecord.Open(ctx, p.URL)
	if err != nil {
		return nil, err // not a nil pointer
	}
	return store, nil
}

func (p Place) openSharedJournal(ctx context.Context, transcripts bool) (runstore.Store, error) {
	j, err := pgjournal.Open(ctx, p.URL)
	if err != nil {
		return nil, err
	}
	j.Transcripts = transcripts
	return j, nil
}

func (p Place) awaitSharedEnd(ctx context.Context, owner string) error {
	db, err := postgres.Open(ctx, p.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.AwaitEnd(ctx, owner)
}

func (p Place) claimShared(ctx context.Context, name string) (leave func() error, held bool, err error) {
	db, err := postgres.Open(ctx, p.URL)
	if err != nil {
		return nil, false, err
	}
	release, held, err := db.Claim(ctx, name)
	if held || err != nil {
		db.Close()
		return nil, held, err
	}
	return func() error {
		defer db.Close()
		return release()
	}, false, nil
}

func sharedPasses(err error) bool {
	return errors.Is(err, postgres.ErrUnreachable) || errors.Is(err, postgres.ErrLeaseLost)
}

// Lost returns a channel, closed if other processes consider an owner of the records dead, or may soon do so.
func Lost(records Records, owner string) <-chan struct{} {
	if leased, ok := records.(interface {
		Lost(owner string) <-chan struct{}
	}); ok {
		return leased.Lost(owner)
	}
	return nil
}

// AwaitLost waits until an owner of the records is lost, and then calls lost. It also returns when ctx is done.
func AwaitLost(ctx context.Context, records Records, owner string, lost func(error)) {
	select {
	case <-Lost(records, owner):
		lost(postgres.ErrLeaseLost)
	case <-ctx.Done():
	}
}

func sharedHint(err error) string {
	switch {
	case errors.Is(err, postgres.ErrAddress):
		return "set WORKCELL_STATE or --state, for example postgres://user@host/database"
	case errors.Is(err, postgres.ErrUnreachable):
		return "check that the server is running and that WORKCELL_STATE or --state is its URL; running work waits for " +
			"it, and interrupted work can be resumed"
	case errors.Is(err, postgres.ErrRefused):
		return "allow the URL's user to connect to the database and to create tables in its schema workcell; set " +
			"PGPASSFILE to a file with passwords"
	case errors.Is(err, postgres.ErrNewer):
		return "use the newer version of workcell that wrote it, or another database"
	case errors.Is(err, postgres.ErrFull):
		return "free some space on the server"
	case errors.Is(err, postgres.ErrLeaseLost):
		return "another process may have removed its sandboxes or resumed its run; check `workcell sandbox ls` and " +
			"`workcell runs ls`"
	}
	return ""
}
