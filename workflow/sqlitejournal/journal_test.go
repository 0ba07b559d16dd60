package sqlitejournal_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/sqlite"
	"github.com/workcell-dev/workcell/workflow/journaltest"
	"github.com/workcell-dev/workcell/workflow/runstore"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

func TestJournal(t *testing.T) {
	t.Parallel()
	journaltest.Run(t, func(t *testing.T) journaltest.Place {
		path := filepath.Join(t.TempDir(), "state.db")
		return journaltest.Place{
			Open: func(t *testing.T) runstore.Store {
				j, err := sqlitejournal.Open(t.Context(), path)
				return closing(t, j, err)
			},
			OpenKeeping: func(t *testing.T) runstore.Store {
				j, err := sqlitejournal.Open(t.Context(), path)
				closing(t, j, err)
				j.Transcripts = true
				return j
			},
			Sessions: func(t *testing.T) record.Store {
				s, err := sqlite.Open(t.Context(), path)
				return closing(t, s, err)
			},
			Exec: func(t *testing.T, query string) {
				db, err := sql.Open("sqlite", path)
				if err == nil {
					_, err = db.ExecContext(t.Context(), query)
					err = errors.Join(err, db.Close())
				}
				checktest.Must(t, err)
			},
		}
	})
}

// closing closes c at the end of the test.
func closing[C interface{ Close() error }](t *testing.T, c C, err error) C {
	t.Helper()
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, c.Close()) })
	return c
}
