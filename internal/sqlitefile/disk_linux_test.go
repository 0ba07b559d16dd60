package sqlitefile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/workcell-dev/workcell/internal/sqlitefile"
)

// smallDisk mounts a file system of 1 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("these tests mount a small file system, which root may: %v", err)
	}
	// A new process of another test may have the file system's files open for a moment.
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// TestFullDisk: a write to a full disk returns ErrFull, and earlier writes are kept.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(smallDisk(t), "state.db")
	f, err := sqlitefile.Open(t.Context(), path, notes())
	must(t, err)
	kept := 0
	for err == nil {
		if err = add(t.Context(), f, strings.Repeat("x", 20_000)); err == nil {
			kept++
		}
	}
	if !errors.Is(err, sqlitefile.ErrFull) || kept == 0 {
		t.Errorf("after %d notes: %v, want ErrFull", kept, err)
	}
	if n := count(t, f); n != kept {
		t.Errorf("%d notes, want the %d that were acknowledged", n, kept)
	}
	if err := f.Close(); err != nil && !errors.Is(err, sqlitefile.ErrFull) {
		t.Error(err)
	}
	if n := count(t, open(t, path, notes())); n != kept {
		t.Errorf("%d notes after opening it again, want %d", n, kept)
	}
}

// TestReadOnlyDisk is not parallel: a new process of another test holds the closed file for a moment, and a file system
// with such a file cannot become read-only.
func TestReadOnlyDisk(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "state.db")
	f, err := sqlitefile.Open(t.Context(), path, notes())
	must(t, err)
	must(t, f.Close())
	must(t, syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	for _, p := range []string{path, filepath.Join(dir, "new", "state.db")} {
		if _, err := sqlitefile.Open(t.Context(), p, notes()); !errors.Is(err, sqlitefile.ErrReadOnly) {
			t.Errorf("Open of %s: %v, want ErrReadOnly", filepath.Base(p), err)
		}
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}
