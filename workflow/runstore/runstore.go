// Package runstore has what every keeper of journals of workflow runs does, so that a run that was interrupted can be looked
// at and resumed by another process. Package workflow/journaltest holds the suite that every implementation must pass.
package runstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/workflow"
)

// ErrDamaged: the entries of one run cannot be read. Other runs are not affected, and Finish ends this one.
var ErrDamaged = errors.New("the journal of the run is damaged")

// CheckOwn returns ErrDamaged if an entry has the id of another run.
func CheckOwn(runID string, entries []workflow.Entry) error {
	for i, e := range entries {
		if e.RunID != runID {
			return fmt.Errorf("entry %d of run %s is one of run %q: %w", i+1, runID, e.RunID, ErrDamaged)
		}
	}
	return nil
}

// Run is a run that the journal knows.
type Run struct {
	ID       string           `json:"id"`
	Workflow string           `json:"workflow"`
	Hash     string           `json:"hash"` // of the workflow, workflow.Workflow.Hash
	Started  time.Time        `json:"started"`
	Finished time.Time        `json:"finished,omitzero"` // zero while it runs, and for ever when it was interrupted
	Outcome  workflow.Outcome `json:"outcome,omitempty"` // empty as long as Finished is zero
	Owner    string           `json:"-"`                 // who runs it, or did: see Lives
	Note     string           `json:"-"`                 // what For was given
	Cancel   bool             `json:"-"`                 // its owner was asked to cancel it
}

// Store keeps the journals of runs. All methods may be called concurrently, also by several processes. Times may lose
// precision below a microsecond.
type Store interface {
	// Journal's Append must fail with backend.ErrExists for an entry whose number is taken or leaves a gap: a run has one
	// writer.
	workflow.Journal
	// For must return the journal for runs of an owner, as Join of the session store at the same place makes them, with a note
	// for the process that resumes them.
	For(owner, note string) workflow.Journal
	// Entries must return the entries of a run so far, without the conversations of attempts that have finished;
	// backend.ErrNotFound for a run that is not known, ErrDamaged for one whose entries cannot be read.
	Entries(ctx context.Context, runID string) ([]workflow.Entry, error)
	// Finish must end a run that nobody resumes, whatever its entries are like: it appends one of kind EventRunFinished. One that
	// has finished must stay as it is.
	Finish(ctx context.Context, runID string, outcome workflow.Outcome, why *workflow.Error) error
	// Lives must report whether an owner is alive, as the session store at the same place does.
	Lives(ctx context.Context, owner string) (bool, error)
	// Take must move a run that has not finished from one owner to another and drop a request to cancel it.
	// backend.ErrExists: it has another owner; backend.ErrNotFound: there is no such run, or it has finished.
	Take(ctx context.Context, runID, from, to string) error
	// AskCancel must ask the owner of a run to cancel it, who sees it in the run.
	AskCancel(ctx context.Context, runID string) error
	// Runs must return the latest runs, at most limit, the newest first.
	Runs(ctx context.Context, limit int) ([]Run, error)
	// Run must return a run; backend.ErrNotFound for one that is not known.
	Run(ctx context.Context, id string) (Run, error)
	// Prune must delete the finished runs that ended before a time, with their entries, and return how many there were.
	Prune(ctx context.Context, before time.Time) (int64, error)
	// Delete must delete a run that has finished, with its entries; one that has not stays.
	Delete(ctx context.Context, runID string) error
	// Close must let go of the place.
	Close() error
}

// Watcher is a Store that hears of what other processes do to a run.
type Watcher interface {
	// Watch must call changed once it hears of changes, and soon after somebody asked for the run's end, took it, or it ended,
	// until ctx ends or it does not hear any more, which is an error. It may be called too often.
	Watch(ctx context.Context, runID string, changed func()) error
}
