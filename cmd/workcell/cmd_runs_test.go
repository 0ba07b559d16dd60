package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// TestForgetAmbiguousRun: the beginning of two runs' ids deletes neither, not even the results if only one of them has some.
func TestForgetAmbiguousRun(t *testing.T) {
	t.Parallel()
	_, a, j := endedRuns(t, "run_aaaaaaaaaaa", "run_aaaaaaaaaab")
	kept, err := a.runFiles()
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.Save("run_aaaaaaaaaab", runfiles.Made{}); err != nil {
		t.Fatal(err)
	}
	if err := a.forget(t.Context(), j, kept, "run_aaaaaaaa"); err == nil || !strings.Contains(err.Error(), "matches 2 runs") {
		t.Errorf("forget = %v", err)
	}
	if made, err := kept.Open("run_aaaaaaaaaab"); err != nil {
		t.Errorf("its results: %v", err)
	} else {
		made.Close()
	}
}

// TestCheckNote: a run of this machine is resumed only as it was started here, even if the database says that it was
// detached, so that its files come from the database.
func TestCheckNote(t *testing.T) {
	t.Parallel()
	a := newApp(Options{StateDir: t.TempDir(), State: "postgres://nobody@192.0.2.1/x"}) // which is not asked
	kept, err := a.runFiles()
	if err != nil {
		t.Fatal(err)
	}
	const here, detached = `{"workflow":"/f","audit":"/a"}`, `{"workflow":"/f","detached":true}`
	for _, c := range []struct{ own, note, want string }{
		{here, here, ""},
		{here, `{"workflow":"/f"}`, "have changed in the database: audit"},
		{here, detached, "have changed in the database: audit, detached"},
		{detached, detached, ""},
		{detached, here, "have changed in the database"},
		{"", here, "was not started with this state directory"},
		{"", detached, ""},
	} {
		r := runstore.Run{ID: "run_1", Note: c.note}
		if err := kept.Remove(r.ID); err != nil {
			t.Fatal(err)
		}
		if c.own != "" {
			if err := kept.KeepNote(r.ID, c.own); err != nil {
				t.Fatal(err)
			}
		}
		n, err := readNote(r)
		if err == nil {
			err = a.checkNote(r, n)
		}
		if got := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
			t.Errorf("of %q, the database has %q: %v, want %q", c.own, c.note, err, c.want)
		}
	}
}

// endedRuns returns a command whose state directory has the journals of runs that have ended.
func endedRuns(t *testing.T, ids ...string) (dir string, a *app, j runstore.Store) {
	t.Helper()
	dir = t.TempDir()
	a = newApp(Options{Env: os.LookupEnv, Stderr: io.Discard, StateDir: dir})
	j, err := a.openJournal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() }) // the last entry is on the disk
	for _, id := range ids {
		for i, kind := range []workflow.EventKind{workflow.EventRunStarted, workflow.EventRunFinished} {
			e := workflow.Entry{RunID: id, Seq: int64(i + 1), Kind: kind, Time: time.Now(), Workflow: "w"}
			if err := j.Append(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir, a, j
}
