package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sqlitefile"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/sqlite"
	"github.com/workcell-dev/workcell/workflow/runstore"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

// Variable names the database for records and journals, in place of the state file.
const Variable = "WORKCELL_STATE"

// Place is where the state of commands is kept: files of runs in the directory, records of sandboxes and journals of
// runs in its state file, or in a database that several machines share.
type Place struct {
	Dir Dir
	URL string // of a PostgreSQL database; empty for the state file
}

// Records are those of sandboxes, with what commands keep beside them.
type Records interface {
	record.Store
	// Instance returns the instance whose sandboxes the records are about, empty when it is not set.
	Instance(ctx context.Context) (string, error)
	// SetInstance sets it, unless it is set.
	SetInstance(ctx context.Context, id string) error
	// AddEnv adds to the variables that are kept for the commands in a sandbox, for as long as its record is a live one.
	AddEnv(ctx context.Context, id string, env map[string]string) error
	// Env returns what AddEnv was given; empty for a sandbox without a record.
	Env(ctx context.Context, id string) (map[string]string, error)
	Close() error
}

// Find returns the place that the flags name, WORKCELL_STATE and WORKCELL_STATE_DIR, or the usual one.
func Find(env environ.Lookup, url, dir string) (Place, error) {
	url = cmp.Or(url, env.Get(Variable))
	if url != "" && !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") {
		return Place{}, hint.New(hint.Usage, fmt.Errorf("--state or %s is not the URL of a PostgreSQL database", Variable),
			"for example postgres://user@host/database; use --state-dir for a directory")
	}
	d, err := Locate(env, dir)
	return Place{Dir: d, URL: url}, err
}

// OpenRecords opens the records of sandboxes.
func (p Place) OpenRecords(ctx context.Context) (Records, error) {
	if p.URL != "" {
		return p.openSharedRecords(ctx)
	}
	return as[Records](sqlite.Open(ctx, p.Dir.File()))
}

// OpenJournal opens the journals of runs.
func (p Place) OpenJournal(ctx context.Context) (runstore.Store, error) {
	if p.URL != "" {
		return p.openSharedJournal(ctx)
	}
	return as[runstore.Store](sqlitejournal.Open(ctx, p.Dir.File()))
}

// as keeps a nil pointer from becoming an interface that is not nil.
func as[I any, T any](v T, err error) (i I, _ error) {
	if err != nil {
		return i, err
	}
	return any(v).(I), nil
}

// There reports whether there is any state, which completing a word or waiting for the end of a process does not make.
// A database is taken to be there.
func (p Place) There() bool {
	if p.URL != "" {
		return true
	}
	_, err := os.Stat(p.Dir.File())
	return err == nil
}

// Instance returns the id of the installation: all who share a database are one. records may be nil.
func (p Place) Instance(ctx context.Context, records Records) (string, error) {
	if p.URL == "" {
		return p.Dir.instanceWith(ctx, records)
	}
	if records == nil {
		return record.NewID(), nil // what is made with it is removed by the same command
	}
	if id, err := records.Instance(ctx); err != nil || id != "" {
		return id, err
	}
	if err := records.SetInstance(ctx, record.NewID()); err != nil {
		return "", err
	}
	return records.Instance(ctx)
}

// ReadInstance returns that id for a process that makes none.
func (p Place) ReadInstance(ctx context.Context, records Records) (string, error) {
	if p.URL == "" {
		return p.Dir.readInstance()
	}
	return records.Instance(ctx)
}

// AwaitEnd waits until an owner of the records has ended.
func (p Place) AwaitEnd(ctx context.Context, owner string) error {
	if p.URL == "" {
		return sqlitefile.AwaitEnd(ctx, p.Dir.File(), owner)
	}
	return p.awaitSharedEnd(ctx, owner)
}

// Claim takes a name, of small letters and digits, for what one process is enough for. held: somebody else has it.
func (p Place) Claim(ctx context.Context, name string) (leave func() error, held bool, err error) {
	if p.URL == "" {
		return sqlitefile.Claim(p.Dir.File(), name)
	}
	return p.claimShared(ctx, name)
}

// Passes reports whether state may be read later that cannot be read now.
func Passes(err error) bool {
	return errors.Is(err, sqlitefile.ErrBusy) || errors.Is(err, sqlitefile.ErrFull) || sharedPasses(err)
}
