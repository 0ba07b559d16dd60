package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/workcell-dev/workcell/internal/state"
)

// disk is a state directory on a file system of its own.
type disk struct {
	dir     string
	environ []string
}

// newDisk mounts a file system of 1 MiB and has the command keep its state there.
func newDisk(t *testing.T) *disk {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Fatalf("these tests mount a small file system, which root may: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	d := &disk{dir: dir}
	for _, v := range testEnviron(t) {
		if !strings.HasPrefix(v, "WORKCELL_STATE_DIR=") {
			d.environ = append(d.environ, v)
		}
	}
	d.environ = append(d.environ, "WORKCELL_STATE_DIR="+dir, "WORKCELL_BACKEND=local")
	t.Cleanup(func() { removeSandboxes(t, d.environ, "local") })
	return d
}

// run runs the command and returns its exit code and output.
func (d *disk) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := workcell(t, args...)
	cmd.Env = d.environ
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// ok runs a command that must succeed and returns its output.
func (d *disk) ok(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := d.run(t, args...)
	if code != 0 {
		t.Fatalf("workcell %s: exit code %d\n%s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// names returns the keys of the sandboxes.
func (d *disk) names(t *testing.T) []string {
	t.Helper()
	var list []struct{ Key string }
	if err := json.Unmarshal([]byte(d.ok(t, "sessions", "ls", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range list {
		names = append(names, s.Key)
	}
	return names
}

// refuses wants that nothing can be made that could not be recorded, with an error and a hint, and that what is there can
// be seen and used.
func (d *disk) refuses(t *testing.T, want, hint string) {
	t.Helper()
	code, _, stderr := d.run(t, "sessions", "open", "--name", "second", "--image", "workcell/debian:12")
	if code != exitFailed || !strings.Contains(stderr, want) || !strings.Contains(stderr, hint) {
		t.Errorf("open: exit code %d\n%s", code, stderr)
	}
	if got := d.names(t); !slices.Equal(got, []string{"user:lab:default"}) {
		t.Errorf("there are %v", got)
	}
	if got := d.ok(t, "sessions", "exec", "lab", "--", "cat", "file"); got != "kept\n" {
		t.Errorf("the file holds %q", got)
	}
}

// TestStateDisk has the disk of the state directory fill up, and become read-only: that is said, what is there can be used,
// and nothing is lost when the disk is well again.
func TestStateDisk(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	open := []string{"sessions", "open", "--name", "lab", "--image", "workcell/debian:12"}
	id := d.ok(t, open...)
	d.ok(t, "sessions", "exec", "lab", "--", "sh", "-c", "echo kept > file")

	filler := filepath.Join(d.dir, "filler")
	fill(t, filler)
	d.refuses(t, "takes no more", "free some space")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if got := d.ok(t, open...); got != id {
		t.Errorf("opened after the disk was full: %s, before %s", got, id)
	}

	remount := func(flags uintptr) {
		t.Helper()
		if err := syscall.Mount("none", d.dir, "tmpfs", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(syscall.MS_RDONLY)
	d.refuses(t, "cannot be written", "--state-dir")
	remount(0)
	if got := d.ok(t, open...); got != id {
		t.Errorf("opened after the disk was read-only: %s, before %s", got, id)
	}
	if got := d.names(t); !slices.Equal(got, []string{"user:lab:default"}) {
		t.Errorf("there are %v", got)
	}
}

// fill writes a file until there is no room.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestStateWithoutOwners: where no owner's file can be made, existing sandboxes can be seen and used.
func TestStateWithoutOwners(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	d.ok(t, "sessions", "open", "--name", "lab", "--image", "workcell/debian:12")
	d.ok(t, "sessions", "exec", "lab", "--", "sh", "-c", "echo kept > file")
	owners := state.Dir(d.dir).File() + "-owners"
	if err := syscall.Mount(owners, owners, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	unmount := func() {
		if err := syscall.Unmount(owners, 0); err != nil {
			t.Error(err)
		}
	}
	defer unmount()
	if err := syscall.Mount("none", owners, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	d.refuses(t, "cannot be written", "--state-dir")
}
