package reaper

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/sqlite"
)

const (
	deadOwner = "aaaaaaaaaaaaaaaa" // id of an ended process
	engine    = "docker-1"
)

// TestReaperNaps verifies the intervals of a reaper's checks. It checks again when a sandbox expires, but at most once
// a second. If the checks have no effect, the interval grows to at most one minute.
func TestReaperNaps(t *testing.T) {
	t.Parallel()
	const late, later, second = -time.Hour, time.Hour, time.Second
	for name, test := range map[string]struct{ due, want []time.Duration }{
		"overdue": {
			[]time.Duration{late, late, late, late, late, late, late, late},
			[]time.Duration{second, 2 * second, 4 * second, 8 * second, 16 * second, 32 * second, time.Minute, time.Minute},
		},
		"changing due times": {
			[]time.Duration{later, late, late, later, later, late},
			[]time.Duration{time.Minute, second, 2 * second, time.Minute, time.Minute, second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := state.Dir(dir).File()
			keep := func(due time.Duration) {
				t.Helper()
				store, err := sqlite.Open(t.Context(), path)
				checktest.Must(t, err)
				rec := record.Record{
					ID: "sbx_x", Key: session.UserKey("box"), Engine: engine, EngineID: "x", Owner: deadOwner,
					State: record.Removing, Created: time.Now().Add(-100 * time.Hour), Expires: time.Now().Add(due),
				}
				if err = store.Insert(t.Context(), rec); errors.Is(err, backend.ErrExists) {
					err = store.Update(t.Context(), rec)
				}
				checktest.Must(t, errors.Join(err, store.Close()))
			}
			keep(test.due[0])
			var naps []time.Duration
			r := &Reaper{State: state.Place{Dir: state.Dir(dir)}, Engine: engine, Logger: slog.New(slog.DiscardHandler),
				Open: func(context.Context) (backend.SandboxBackend, error) { return nil, backend.ErrUnavailable },
				pause: func(_ context.Context, d time.Duration) bool {
					naps = append(naps, d)
					if len(naps) == len(test.want) {
						return false
					}
					keep(test.due[len(naps)])
					return true
				}}
			checktest.Must(t, r.sweepOn(t.Context()))
			if diff := cmp.Diff(test.want, naps); diff != "" {
				t.Errorf("naps (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDatabase verifies that a reaper connects to the same database from any directory. The driver accepts URLs that
// net/url doesn't, and decodes no plus sign.
func TestDatabase(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	checktest.Must(t, err)
	cert := url.QueryEscape(filepath.Join(here, "c")) + "%20d"
	for _, address := range []string{
		"postgres://u:p@h:1,i:2/?sslcert=c%20d&sslrootcert=system", "postgres://u:p@%2Frun%2Fpostgresql/d?x=y&sslcert=c%20d",
		"postgres://u:a#b?c@h/d", "postgres://h/d?options=-c%20search_path%3Dx",
	} {
		got := Options{
			State: state.Place{URL: address},
			Env: environ.Of(map[string]string{
				"PGDATABASE": "d", "PGSSLPASSWORD": "s", "PGSERVICE": "s", "PGPASSFILE": "f", "PGSSLROOTCERT": "system",
			}),
		}.database()
		want := []string{
			"PGDATABASE=d", "PGSERVICE=s", "PGSSLPASSWORD=s", "PGPASSFILE=" + filepath.Join(here, "f"),
			"PGSSLROOTCERT=system", "WORKCELL_STATE=" + strings.ReplaceAll(address, "c%20d", cert),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("variables (-want +got):\n%s", diff)
		}
	}
}
