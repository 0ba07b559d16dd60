package main

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// TestForgetAmbiguousRun verifies that a common prefix of two run ids deletes neither run, even if only one of them has
// results.
func TestForgetAmbiguousRun(t *testing.T) {
	t.Parallel()
	_, a, j := endedRuns(t, "run_aaaaaaaaaaa", "run_aaaaaaaaaab")
	kept, err := a.RunFiles()
	checktest.Must(t, err)
	checktest.Must(t, kept.Save("run_aaaaaaaaaab", runfiles.Made{}))
	if _, err := a.Forget(t.Context(), j, "run_aaaaaaaa"); err == nil || !strings.Contains(err.Error(), "matches 2 runs") {
		t.Errorf("forget = %v", err)
	}
	if made, err := kept.Open("run_aaaaaaaaaab"); err != nil {
		t.Errorf("its results: %v", err)
	} else {
		made.Close()
	}
}

// endedRuns returns an App whose state directory has the journals of finished runs.
func endedRuns(t *testing.T, ids ...string) (dir string, a *app.App, j runstore.Store) {
	t.Helper()
	dir = t.TempDir()
	a = app.New(app.Options{Env: os.LookupEnv, Stderr: io.Discard, StateDir: dir})
	j, err := a.OpenJournal(t.Context())
	checktest.Must(t, err)
	t.Cleanup(func() { _ = j.Close() }) // the last entry is already on disk
	for _, id := range ids {
		for i, kind := range []workflow.EventKind{workflow.EventRunStarted, workflow.EventRunFinished} {
			e := workflow.Entry{RunID: id, Seq: int64(i + 1), Kind: kind, Time: time.Now(), Workflow: "w"}
			checktest.Must(t, j.Append(t.Context(), e))
		}
	}
	return dir, a, j
}
