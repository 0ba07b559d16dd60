//go:build !windows

package main

import (
	"bufio"
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/engines"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/sqlite"
)

// deadOwner is the id of an ended process.
const deadOwner = "aaaaaaaaaaaaaaaa"

// TestReaperGivesUp verifies that a reaper without an engine exits when the sandboxes are overdue by a day, and not
// earlier. It does not sweep another engine.
func TestReaperGivesUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		overdue time.Duration
		stays   bool
		engine  string // instead of the engine's own ID
		why     string
	}{
		"an hour":        {time.Hour, true, "", "engine unavailable"},
		"two days":       {48 * time.Hour, false, "", "engine unavailable"},
		"another engine": {time.Hour, true, "docker-1", "another engine"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			set := engines.Set{Env: environ.Of(map[string]string{"DOCKER_HOST": "unix:///nonexistent"})}
			engine, err := set.ID(t.Context(), engines.Docker)
			checktest.Must(t, err)
			engine = cmp.Or(test.engine, engine)
			store, err := sqlite.Open(t.Context(), state.Dir(dir).File())
			checktest.Must(t, err)
			if _, err := (state.Place{Dir: state.Dir(dir)}).Instance(t.Context(), store); err != nil {
				t.Fatal(err)
			}
			rec := record.Record{
				ID: "sbx_x", Key: session.UserKey("box"), Engine: engine, EngineID: "x", Owner: deadOwner,
				State: record.Removing, Created: time.Now().Add(-100 * time.Hour), Expires: time.Now().Add(-test.overdue),
			}
			checktest.Must(t, errors.Join(store.Insert(t.Context(), rec), store.Close()))
			cmd := workcell(t, "reaper", "--owner", deadOwner, "--backend", engines.Docker, "--engine", engine,
				"--state-dir", dir)
			cmd.Env = []string{"DOCKER_HOST=unix:///nonexistent", "WORKCELL_DEBUG=1"}
			out, err := cmd.StderrPipe() // it reports the missing engine here
			checktest.Must(t, errors.Join(err, cmd.Start()))
			sweeps := 0
			for lines := bufio.NewScanner(out); sweeps < 2 && lines.Scan(); {
				t.Log(lines.Text())
				if strings.Contains(lines.Text(), test.why) {
					sweeps += strings.Count(lines.Text(), "cannot run the cleanup sweep now")
				}
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if stayed := sweeps > 1; stayed != test.stays || sweeps == 0 {
				t.Errorf("it stayed: %v, after %d sweeps", stayed, sweeps)
			}
		})
	}
}

// TestReaperMakesNothing verifies that a removed state directory is not recreated.
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
