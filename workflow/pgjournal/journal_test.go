package pgjournal_test

import (
	"errors"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	server "github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/postgres"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/journaltest"
	"github.com/workcell-dev/workcell/workflow/pgjournal"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

func TestJournal(t *testing.T) {
	t.Parallel()
	journaltest.Run(t, func(t *testing.T) journaltest.Place {
		url := pgtest.Database(t)
		return journaltest.Place{
			Open: func(t *testing.T) runstore.Store { return journal(t, url) },
			OpenKeeping: func(t *testing.T) runstore.Store {
				j := journal(t, url)
				j.Transcripts = true
				return j
			},
			Sessions: func(t *testing.T) record.Store { return records(t, url) },
			Exec:     func(t *testing.T, query string) { pgtest.Exec(t, url+"&search_path=workcell", query) },
		}
	})
}

func journal(t *testing.T, url string) *pgjournal.Journal {
	j, err := pgjournal.Open(t.Context(), url)
	return closing(t, j, err)
}

func records(t *testing.T, url string) *postgres.Store {
	s, err := postgres.Open(t.Context(), url)
	return closing(t, s, err)
}

// closing closes c at the end of the test.
func closing[C interface{ Close() error }](t *testing.T, c C, err error) C {
	t.Helper()
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, c.Close()) })
	return c
}

// TestWatch verifies that another process is notified at once about requests for a run and about the end.
func TestWatch(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	there, here := journal(t, url), journal(t, url)
	heard := make(chan struct{})
	go there.Watch(t.Context(), "run_1", func() { //nolint:errcheck // it ends with the test
		select {
		case heard <- struct{}{}:
		case <-t.Context().Done():
		}
	})
	<-heard // waits until it listens
	entry := func(run string, seq int64, kind workflow.EventKind) error {
		return here.Append(t.Context(), workflow.Entry{RunID: run, Seq: seq, Time: time.Now(), Kind: kind})
	}
	look := func(done func(r runstore.Run) bool) {
		t.Helper()
		<-heard
		if r, err := there.Run(t.Context(), "run_1"); err != nil || !done(r) {
			t.Errorf("%+v, %v", r, err)
		}
	}
	// A watch does not report changes of other runs.
	checktest.Must(t, entry("run_1", 1, workflow.EventRunStarted))
	checktest.Must(t, entry("run_2", 1, workflow.EventRunStarted))
	checktest.Must(t, errors.Join(here.AskCancel(t.Context(), "run_2"), here.AskCancel(t.Context(), "run_1")))
	look(func(r runstore.Run) bool { return r.Cancel })
	checktest.Must(t, here.Take(t.Context(), "run_1", "", "other"))
	look(func(r runstore.Run) bool { return r.Owner == "other" && !r.Cancel })
	checktest.Must(t, here.Finish(t.Context(), "run_1", workflow.Cancelled, nil))
	look(func(r runstore.Run) bool { return !r.Finished.IsZero() })
}

// TestOwnerCannotAppend verifies that an owner adds no entry to a run that another process has taken, or after its own
// death.
func TestOwnerCannotAppend(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	j := journal(t, url)
	owner, leave, err := records(t, url).Join(t.Context())
	checktest.Must(t, err)
	own := j.For(owner, "")
	checktest.Must(t, own.Append(t.Context(), workflow.Entry{RunID: "run_1", Seq: 1, Kind: workflow.EventRunStarted}))
	checktest.Must(t, j.Take(t.Context(), "run_1", owner, "other"))
	for _, want := range []error{backend.ErrExists, server.ErrLeaseLost} {
		for i, kind := range []workflow.EventKind{workflow.EventRunStarted, workflow.EventStepStarted} {
			err := own.Append(t.Context(), workflow.Entry{RunID: "run_1", Seq: int64(i + 1), Kind: kind})
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", kind, err, want)
			}
		}
		checktest.Must(t, leave())
	}
}
