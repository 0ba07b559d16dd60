//go:build linux

package local_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
)

// diskEnv is the environment variable with the state directory on a test's disk, for child processes.
const diskEnv = "WORKCELL_LOCAL_TEST_DISK"

// newDisk creates a disk with a file system and returns a state directory on it.
func newDisk(t *testing.T, mkfs ...string) string {
	t.Helper()
	image, at := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	f, err := os.Create(image)
	if err == nil {
		err = f.Truncate(4 << 30) // sparse
	}
	must(t, err)
	defer f.Close() //nolint:errcheck // no data was written
	for _, argv := range [][]string{append(mkfs, image), {"mount", "-o", "loop", image, at}} {
		if out, err := exec.Command("/usr/bin/env", append([]string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin"}, argv...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	t.Cleanup(func() {
		err := unix.Unmount(at, 0)
		for end := time.Now().Add(time.Minute); errors.Is(err, unix.EBUSY) && time.Now().Before(end); err = unix.Unmount(at, 0) {
			time.Sleep(100 * time.Millisecond) // the kernel unmounts asynchronously after a namespace's last process has exited
		}
		if err != nil {
			t.Errorf("something still uses the disk: %v", err)
		}
	})
	dir := filepath.Join(at, "state")
	must(t, os.Mkdir(dir, 0o700))
	return dir
}

// TestSnapshotsOnExt4 verifies snapshots on a file system without support for sharing blocks between files. The
// snapshot of a workspace with a limit is a directory.
func TestSnapshotsOnExt4(t *testing.T) { snapshotsOn(t, "mkfs.ext4", "-q", "-F") }

// TestSnapshotsOnXFS verifies snapshots on a file system with support for shared blocks. The snapshot of a
// workspace with a limit is a directory.
func TestSnapshotsOnXFS(t *testing.T) { snapshotsOn(t, "mkfs.xfs", "-q", "-m", "reflink=1") }

func snapshotsOn(t *testing.T, mkfs ...string) {
	t.Helper()
	dir := os.Getenv(diskEnv)
	if dir == "" {
		dir = newDisk(t, mkfs...)
		t.Setenv(diskEnv, dir)
	}
	backendtest.RunGroups(t, harness(dir), "snapshots")
}

// TestSnapshotsTakeWhatChanged verifies that, on a file system without support for shared blocks, files unchanged since
// the last snapshot or rollback use no additional space. It also verifies that a fork with a limit reserves the space.
func TestSnapshotsTakeWhatChanged(t *testing.T) {
	t.Parallel()
	dir := newDisk(t, "mkfs.ext4", "-q", "-F")
	b := newBackend(t, dir)
	for what, limits := range map[string]backend.Limits{"directory": {}, "file system": {WorkspaceBytes: 64 << 20}} {
		spec := newSpec()
		spec.Limits = limits
		info := backendtest.Create(t, b, spec)
		conn := backendtest.Dial(t, b, info.ID)
		backendtest.Sh(t, conn, "head -c 20000000 /dev/urandom > large; mkdir d; echo 1 > d/f; echo same > d/same; ln d/same d/link")
		inodes := func(name string) (list []string) {
			for _, file := range []string{"large", "d/f", "d/same", "d/link"} {
				var st unix.Stat_t
				if err := unix.Stat(filepath.Join(dir, "workspaces", info.SessionID, "snapshots", name, "files", file), &st); err != nil {
					t.Fatal(what, err)
				}
				list = append(list, fmt.Sprint(st.Ino))
			}
			return list
		}
		for i, script := range []string{"true", "echo 2 > d/f", "rm d/link", "rm d/link; ln d/same d/link"} {
			backendtest.Sh(t, conn, script)
			time.Sleep(100 * time.Millisecond) // recent changes are always copied
			if i == 2 {                        // roll back
				if err := b.Rollback(t.Context(), info.ID, "s1"); err != nil {
					t.Fatal(what, err)
				}
			}
			snap, err := b.Snapshot(t.Context(), info.ID, fmt.Sprint("s", i))
			if err != nil || snap.Mechanism != backend.SnapshotCopy {
				t.Fatalf("%s: %+v, %v", what, snap, err)
			}
		}
		first := inodes("s0")
		for name, same := range map[string][]bool{"s1": {true, false, true, true}, "s2": {true, false, false, false}, "s3": {true, false, false, false}} {
			now := inodes(name)
			for i := range now {
				if (now[i] == first[i]) != same[i] {
					t.Errorf("%s: %s has %v, s0 %v", what, name, now, first)
				}
			}
			if now[2] != now[3] {
				t.Errorf("%s: %s lost a link", what, name)
			}
		}
		if s1, s2 := inodes("s1"), inodes("s2"); s1[1] != s2[1] {
			t.Errorf("%s: %v after a rollback, %v before", what, s2, s1)
		}
		spec = newSpec()
		spec.Limits, spec.Fork = limits, &backend.ForkOf{SessionID: info.SessionID, Snapshot: "s3"}
		fork := backendtest.Create(t, b, spec)
		if got := backendtest.Sh(t, backendtest.Dial(t, b, fork.ID), "cat d/f d/same; wc -c < large"); got != "2\nsame\n20000000\n" {
			t.Errorf("%s: a fork has %q", what, got)
		}
		var st unix.Stat_t
		if limits != (backend.Limits{}) {
			if err := unix.Stat(filepath.Join(dir, "workspaces", fork.SessionID, "disk.img"), &st); err != nil || st.Blocks*512 < limits.WorkspaceBytes {
				t.Errorf("%d bytes are set aside for a fork, %v", st.Blocks*512, err)
			}
		}
		for _, id := range []string{fork.ID, info.ID} {
			backendtest.Remove(t, b, id)
		}
	}
}
