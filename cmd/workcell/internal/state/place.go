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

// Variable is the environment variable with the URL of the database for records and journals. It replaces the state
// file.
const Variable = "WORKCELL_STATE"

// Place is the location of the state. The directory contains the files of runs. The records of sandboxes and the
// journals of runs are in the state file, or in a database that several hosts share.
type Place struct {
	Dir Dir
	URL string // of a PostgreSQL database; empty for the state file
}

// Records are the records of sandboxes, with additional data of commands.
type Records interface {
	record.Store
	// Instance returns the instance id of the recorded sandboxes, or an empty string if it is not set.
	Instance(ctx context.Context) (string, error)
	// SetInstance sets the instance id, unless it is already set.
	SetInstance(ctx context.Context, id string) error
	// AddEnv adds variables for the commands in a sandbox. They are kept as long as the sandbox has a live record.
	AddEnv(ctx context.Context, id string, env map[string]string) error
	// Env returns the variables added by AddEnv. It is empty for a sandbox without a record.
	Env(ctx context.Context, id string) (map[string]string, error)
	Close() error
}

// Find returns the location set by the flags, or by WORKCELL_STATE and WORKCELL_STATE_DIR, or else the default
// location.
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
	store, err := sqlite.Open(ctx, p.Dir.File())
	if err != nil {
		return nil, err // not a nil pointer
	}
	return store, nil
}

// OpenJournal opens the journals of runs. If transcripts is set, they keep the conversations of finished attempts.
func (p Place) OpenJournal(ctx context.Context, transcripts bool) (runstore.Store, error) {
	if p.URL != "" {
		return p.openSharedJournal(ctx, transcripts)
	}
	j, err := sqlitejournal.Open(ctx, p.Dir.File())
	if err != nil {
		return nil, err
	}
	j.Transcripts = transcripts
	return j, nil
}

// There reports whether any state exists. Completion and waiting for the end of a process use it, because they must not
// create state. A database counts as existing.
func (p Place) There() bool {
	if p.URL != "" {
		return true
	}
	_, err := os.Stat(p.Dir.File())
	return err == nil
}

// Instance returns the id of the installation. All hosts with the same database have the same id. records may be nil.
func (p Place) Instance(ctx context.Context, records Records) (string, error) {
	if p.URL == "" {
		return p.Dir.instanceWith(ctx, records)
	}
	if records == nil {
		return record.NewID(), nil // the same command removes everything created with this id
	}
	if id, err := records.Instance(ctx); err != nil || id != "" {
		return id, err
	}
	if err := records.SetInstance(ctx, record.NewID()); err != nil {
		return "", err
	}
	return records.Instance(ctx)
}

// ReadInstance returns the id of the installation. It never creates an id.
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

// Claim claims a name, of lowercase letters and digits, for a task of only one process. held reports
// whether another process has claimed it. leave releases the claim.
func (p Place) Claim(ctx context.Context, name string) (leave func() error, held bool, err error) {
	if p.URL == "" {
		return sqlitefile.Claim(p.Dir.File(), name)
	}
	return p.claimShared(ctx, name)
}

// Passes reports whether err is temporary and the state may be readable later.
func Passes(err error) bool {
	return errors.Is(err, sqlitefile.ErrBusy) || errors.Is(err, sqlitefile.ErrFull) || sharedPasses(err)
}
