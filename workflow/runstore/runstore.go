// Package runstore has what every keeper of journals of workflow runs does, so that a run that was interrupted can be
// looked at and resumed by another process. Package workflow/journaltest holds the suite that every implementation must
// pass.
package runstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/workflow"
)

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
	// For must return the journal for runs of an owner, as Join of the session store at the same place makes them, with a
	// note for the process that resumes them.
	For(owner, note string) workflow.Journal
	// Entries must return the entries of a run so far, without the conversations of attempts that have finished;
	// backend.ErrNotFound for a run that is not known, ErrDamaged for one whose entries cannot be read.
	Entries(ctx context.Context, runID string) ([]workflow.Entry, error)
	// Finish must end a run that nobody resumes, whatever its entries are like: it appends one of kind EventRunFinished.
	// One that has finished must stay as it is.
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

// Watcher is a Store that learns from the database what other processes do to a run. Watch must call changed when it
// begins to listen, and soon after a process cancels, takes or ends the run. Extra calls of changed do no harm. Watch
// returns if ctx ends, and with an error if it cannot listen.
type Watcher interface {
	Watch(ctx context.Context, runID string, changed func()) error
}

// News returns a channel that holds an element after a watch has called changed, and every so often. The time varies,
// so that no process is always the first to look. News restarts a watch that fails. It works until ctx ends.
func News(ctx context.Context, every time.Duration,
	watches ...func(ctx context.Context, changed func()) error) <-chan struct{} {
	news := make(chan struct{}, 1)
	look := func() {
		select {
		case news <- struct{}{}:
		default: // a look is due already
		}
	}
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	for _, watch := range watches {
		go func() {
			for ctx.Err() == nil {
				_ = watch(ctx, look)
				pause(time.Second)
				look() // also while it cannot listen
			}
		}()
	}
	go func() {
		for ctx.Err() == nil {
			pause(every/2 + rand.N(every))
			look()
		}
	}()
	return news
}

// lookWhenTold is how much longer the pauses between looks are at a Watcher: it cannot hear of a death.
const lookWhenTold = 10

// Await calls done with a run after each change of it, and every so often, until done returns true. It returns false if
// ctx ends before.
func Await(ctx context.Context, s Store, runID string, every time.Duration, done func(Run, error) bool) bool {
	var news <-chan struct{}
	if w, tells := s.(Watcher); tells {
		news = News(ctx, lookWhenTold*every, func(ctx context.Context, changed func()) error {
			return w.Watch(ctx, runID, changed)
		})
	} else {
		news = News(ctx, every)
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-news:
		}
		if r, err := s.Run(ctx, runID); ctx.Err() == nil && done(r, err) {
			return true
		}
	}
}

// AwaitCancel calls cancel if a process asks for the end of a run. It returns then, or if ctx ends.
func AwaitCancel(ctx context.Context, s Store, runID string, cancel func()) {
	if Await(ctx, s, runID, time.Second, func(r Run, err error) bool { return err == nil && r.Cancel }) {
		cancel()
	}
}

// ErrDamaged: the entries of one run cannot be read. Other runs are not affected, and Finish ends this one.
var ErrDamaged = errors.New("the journal of the run is damaged")

// Encode returns an entry as JSON and, apart from it, its part of a conversation.
func Encode(e workflow.Entry) (data, part string, err error) {
	part, e.Conversation = string(e.Conversation), nil
	raw, err := json.Marshal(e)
	if err != nil {
		return "", "", fmt.Errorf("entry %d of run %s: %w", e.Seq, e.RunID, err)
	}
	return string(raw), part, nil
}

// Decode returns an entry that Encode has encoded. part is nil if the entry has no part of a conversation.
func Decode(data string, part *string) (e workflow.Entry, err error) {
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return e, fmt.Errorf("an entry: %v: %w", err, ErrDamaged)
	}
	if part != nil {
		if e.Conversation = json.RawMessage(*part); !json.Valid(e.Conversation) {
			return e, fmt.Errorf("entry %d: its part of a conversation is not JSON: %w", e.Seq, ErrDamaged)
		}
	}
	return e, nil
}

// Check returns the entries that s has read for a run, or err. It returns backend.ErrNotFound for an unknown run, and
// ErrDamaged if there are no entries or one has the id of another run.
func Check(ctx context.Context, s Store, runID string, list []workflow.Entry, err error) ([]workflow.Entry, error) {
	if err == nil && len(list) == 0 {
		if _, err := s.Run(ctx, runID); err != nil {
			return nil, err
		}
		err = fmt.Errorf("no entries: %w", ErrDamaged)
	}
	for i, e := range list {
		if err == nil && e.RunID != runID {
			err = fmt.Errorf("entry %d is one of run %q: %w", i+1, e.RunID, ErrDamaged)
		}
	}
	if errors.Is(err, ErrDamaged) {
		err = fmt.Errorf("run %s: %w", runID, err)
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// One returns the first run of a list, or err. For an empty list it returns backend.ErrNotFound.
func One(id string, list []Run, err error) (Run, error) {
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("run %s: %w", id, backend.ErrNotFound)
	}
	if err != nil {
		return Run{}, err
	}
	return list[0], nil
}

// NotTaken returns the error of Take for a run that it did not move.
func NotTaken(r Run) error {
	if !r.Finished.IsZero() {
		return fmt.Errorf("run %s has finished: %w", r.ID, backend.ErrNotFound)
	}
	return fmt.Errorf("run %s has another owner: %w", r.ID, backend.ErrExists)
}
