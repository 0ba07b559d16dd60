//go:build !windows

package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/engines"
	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
)

// deadOwner is the id of a process that has ended.
const deadOwner = "aaaaaaaaaaaaaaaa"

// TestReaperGivesUp: a reaper whose engine does not come back goes when what it waits for is overdue for a day, and stays
// until then.
func TestReaperGivesUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		overdue time.Duration
		stays   bool
	}{
		"an hour":  {time.Hour, true},
		"two days": {48 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			a := &app{stateDirFlag: dir, env: environ.Of(map[string]string{"DOCKER_HOST": "unix:///nonexistent"})}
			if _, err := a.instance(session.NewID()); err != nil {
				t.Fatal(err)
			}
			store, err := sqlitestore.Open(t.Context(), filepath.Join(dir, stateFile))
			if err != nil {
				t.Fatal(err)
			}
			rec := session.Record{
				ID: "sbx_x", Key: session.UserKey("box"), Engine: a.engines().ID(engines.Docker), EngineID: "x", Owner: deadOwner,
				State: session.RecordRemoving, Created: time.Now().Add(-100 * time.Hour), Expires: time.Now().Add(-test.overdue),
			}
			if err := errors.Join(store.Insert(t.Context(), rec), store.Close()); err != nil {
				t.Fatal(err)
			}
			cmd := workcell(t, "reaper", "--owner", deadOwner, "--backend", engines.Docker, "--state-dir", dir)
			cmd.Env = []string{"DOCKER_HOST=unix:///nonexistent", "WORKCELL_DEBUG=1"}
			out, err := cmd.StderrPipe() // where it says that the engine does not answer
			if err = errors.Join(err, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			sweeps := 0
			for lines := bufio.NewScanner(out); sweeps < 2 && lines.Scan(); {
				t.Log(lines.Text())
				sweeps += strings.Count(lines.Text(), "cannot sweep now")
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if stayed := sweeps > 1; stayed != test.stays || sweeps == 0 {
				t.Errorf("it stayed: %v, after %d sweeps", stayed, sweeps)
			}
		})
	}
}

// TestReaperNaps: a reaper looks again when something is due, but not more often than once a second; the seldomer the longer
// nothing comes of it, and once a minute at least.
func TestReaperNaps(t *testing.T) {
	t.Parallel()
	const late, later, second = -time.Hour, time.Hour, time.Second
	for name, test := range map[string]struct{ due, want []time.Duration }{
		"overdue": {
			[]time.Duration{late, late, late, late, late, late, late, late},
			[]time.Duration{second, 2 * second, 4 * second, 8 * second, 16 * second, 32 * second, time.Minute, time.Minute},
		},
		"something else meanwhile": {
			[]time.Duration{later, late, late, later, later, late},
			[]time.Duration{time.Minute, second, 2 * second, time.Minute, time.Minute, second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			a := newApp(strings.NewReader(""), io.Discard, io.Discard)
			a.stateDirFlag, a.env = dir, environ.Of(map[string]string{"DOCKER_HOST": "unix:///nonexistent"})
			if _, err := a.instance(session.NewID()); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, stateFile)
			keep := func(due time.Duration) {
				t.Helper()
				store, err := sqlitestore.Open(t.Context(), path)
				if err != nil {
					t.Fatal(err)
				}
				rec := session.Record{
					ID: "sbx_x", Key: session.UserKey("box"), Engine: a.engines().ID(engines.Docker), EngineID: "x", Owner: deadOwner,
					State: session.RecordRemoving, Created: time.Now().Add(-100 * time.Hour), Expires: time.Now().Add(due),
				}
				if err = store.Insert(t.Context(), rec); errors.Is(err, backend.ErrExists) {
					err = store.Update(t.Context(), rec)
				}
				if err := errors.Join(err, store.Close()); err != nil {
					t.Fatal(err)
				}
			}
			keep(test.due[0])
			var naps []time.Duration
			over := errors.New("seen enough")
			r := &reaper{a: a, flags: engineFlags{backend: engines.Docker}, engine: a.engines().ID(engines.Docker), state: path,
				pause: func(_ context.Context, d time.Duration) error {
					naps = append(naps, d)
					if len(naps) == len(test.want) {
						return over
					}
					keep(test.due[len(naps)])
					return nil
				}}
			if err := r.sweepOn(t.Context()); !errors.Is(err, over) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, naps); diff != "" {
				t.Errorf("naps (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReaperMakesNothing: a state directory that was removed is not made anew.
func TestReaperMakesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	cmd := workcell(t, "reaper", "--owner", deadOwner, "--backend", engines.Local, "--state-dir", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
}
