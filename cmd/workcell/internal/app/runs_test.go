package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// TestDropSnapshots verifies that the initial files of sandboxes are deleted if their owner is dead, and not if the
// owner belongs to another store with the same directory.
func TestDropSnapshots(t *testing.T) {
	t.Parallel()
	const owner = "aaaaaaaaaaaaaaaa"
	place := state.Place{Dir: state.Dir(t.TempDir())}
	other := state.Place{Dir: place.Dir, URL: "postgres://user@host/database"}
	for _, at := range []state.Place{place, other} {
		checktest.Must(t, os.MkdirAll(string(snapshotsIn(at, owner)), 0o700))
	}
	checktest.Must(t, os.WriteFile(string(snapshotsIn(place, ".DS_Store")), nil, 0o600))
	j, err := place.OpenJournal(t.Context(), false)
	checktest.Must(t, err)
	defer j.Close() //nolint:errcheck // only read from
	checktest.Must(t, dropSnapshots(t.Context(), j, place))
	_, own := os.Stat(string(snapshotsIn(place, owner)))
	_, others := os.Stat(string(snapshotsIn(other, owner)))
	if !errors.Is(own, fs.ErrNotExist) || others != nil {
		t.Errorf("own: %v, others: %v", own, others)
	}
}

// TestNoteWithoutLinks verifies that the note contains no links in --out, even if PWD contains a link.
func TestNoteWithoutLinks(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	checktest.Must(t, os.Symlink(t.TempDir(), link))
	t.Chdir(link) // sets PWD
	m := memoryManager(t)
	m.conf = &config.Config{}
	h := &host{App: New(Options{runFlags: runFlags{Out: "results"}}), m: m}
	if note, err := h.note("wf.yaml"); err != nil || strings.Contains(note, "link/results") {
		t.Errorf("%s, %v", note, err)
	}
}

// TestCheckNote verifies that a run of this host is resumed only with its original settings. Even if the database marks
// the run as detached, its files must not come from the database.
func TestCheckNote(t *testing.T) {
	t.Parallel()
	// The database is never contacted.
	a := New(Options{Env: os.LookupEnv, StateDir: t.TempDir(), State: "postgres://reader@192.0.2.1/x"})
	kept, err := a.RunFiles()
	checktest.Must(t, err)
	const here, detached = `{"workflow":"/f","audit":"/a"}`, `{"workflow":"/f","detached":true}`
	for _, c := range []struct{ own, note, want string }{
		{here, here, ""},
		{here, `{"workflow":"/f"}`, "have changed in the database: audit"},
		{here, detached, "have changed in the database: audit, detached"},
		{detached, detached, ""},
		{detached, here, "have changed in the database"},
		{detached + "\n" + here, here, ""}, // the process died while it detached the run
		{detached + "\n" + here, `{"workflow":"/f"}`, "have changed in the database: detached"},
		{"null", here, "have changed in the database: audit, workflow"},
		{"", here, "was not started with this state directory"},
		{"", detached, ""},
	} {
		r := runstore.Run{ID: "run_1", Note: c.note}
		checktest.Must(t, kept.Remove(r.ID))
		if c.own != "" {
			checktest.Must(t, kept.KeepNote(r.ID, c.own))
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
