package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// newDisk mounts a file system of 1 MiB for a user's state.
func newDisk(t *testing.T) (dir string, u user) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Fatalf("these tests mount a small file system, which root may: %v", err)
	}
	t.Cleanup(func() { checktest.Must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	u = newUser(t, "local")
	u.environ = append(u.environ, "WORKCELL_STATE_DIR="+dir) // the last entry is used
	t.Cleanup(func() { removeSandboxes(t, u.environ, "local") })
	return dir, u
}

// refuses verifies that creating sandboxes fails with an error and a hint, because no record can be written.
// Existing sandboxes must stay usable.
func (u user) refuses(want, hint string) {
	u.t.Helper()
	_, stderr := u.run(app.ExitFailed, "sandbox", "open", "--name", "second", "--image", "workcell/debian:12")
	if !strings.Contains(stderr, want) || !strings.Contains(stderr, hint) {
		u.t.Errorf("open:\n%s", stderr)
	}
	if got := u.sandboxes(); !slices.Equal(got, []string{"user:lab:default"}) {
		u.t.Errorf("there are %v", got)
	}
	if got, _ := u.run(0, "sandbox", "exec", "lab", "--", "cat", "file"); got != "kept\n" {
		u.t.Errorf("the file holds %q", got)
	}
}

// TestStateDisk verifies the behavior if the disk of the state directory is full or read-only. Commands report the
// problem, existing sandboxes stay usable, and nothing is lost after the disk is usable again.
func TestStateDisk(t *testing.T) {
	t.Parallel()
	dir, u := newDisk(t)
	open := []string{"sandbox", "open", "--name", "lab", "--image", "workcell/debian:12"}
	id, _ := u.run(0, open...)
	u.run(0, "sandbox", "exec", "lab", "--", "sh", "-c", "echo kept > file")

	filler := filepath.Join(dir, "filler")
	fill(t, filler)
	u.refuses("disk of the state file is full", "free some space")
	checktest.Must(t, os.Remove(filler))
	if got, _ := u.run(0, open...); got != id {
		t.Errorf("opened after the disk was full: %s, before %s", got, id)
	}

	remount := func(flags uintptr) {
		t.Helper()
		checktest.Must(t, syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT|flags, ""))
	}
	remount(syscall.MS_RDONLY)
	u.refuses("cannot write the state file", "--state-dir")
	remount(0)
	if got, _ := u.run(0, open...); got != id {
		t.Errorf("opened after the disk was read-only: %s, before %s", got, id)
	}
	if got := u.sandboxes(); !slices.Equal(got, []string{"user:lab:default"}) {
		t.Errorf("there are %v", got)
	}
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	checktest.Must(t, err)
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	checktest.Must(t, f.Close())
}

// TestStateWithoutOwners verifies that existing sandboxes are listed and usable if no owner's lock file can be created.
func TestStateWithoutOwners(t *testing.T) {
	t.Parallel()
	dir, u := newDisk(t)
	u.run(0, "sandbox", "open", "--name", "lab", "--image", "workcell/debian:12")
	u.run(0, "sandbox", "exec", "lab", "--", "sh", "-c", "echo kept > file")
	owners := state.Dir(dir).File() + "-owners"
	checktest.Must(t, syscall.Mount(owners, owners, "", syscall.MS_BIND, ""))
	unmount := func() { checktest.Must(t, syscall.Unmount(owners, syscall.MNT_DETACH)) }
	defer unmount()
	checktest.Must(t, syscall.Mount("none", owners, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""))
	u.refuses("cannot write the state file", "--state-dir")
}
