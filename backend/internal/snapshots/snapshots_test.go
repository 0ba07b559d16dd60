//go:build linux

package snapshots_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// image creates a file system for a workspace.
func image(t *testing.T, dir string, size int64) string {
	t.Helper()
	file := filepath.Join(dir, "disk.img")
	must(t, sizedfs.Format(t.Context(), file, sizedfs.Spec{Bytes: size, Files: 100}))
	return file
}

// taken creates a workspace with these files and a snapshot.
func taken(t *testing.T, snapshot string, files ...string) *snapshots.Workspace {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "w")
	w := &snapshots.Workspace{Dir: dir, Files: filepath.Join(dir, "files")}
	tree(t, w.Files, files...)
	_, err := w.Take(t.Context(), snapshot)
	must(t, err)
	return w
}

// TestUnfrozen verifies that neither a snapshot nor a rollback touches files while commands may write them.
func TestUnfrozen(t *testing.T) {
	t.Parallel()
	w := taken(t, "one", "f")
	tree(t, w.Files, "later")
	w.Processes = host.Processes{PID: os.Getpid()} // running, but without a control group
	_, err := w.Take(t.Context(), "two")
	for what, err := range map[string]error{"Take": err, "Rollback": w.Rollback(t.Context(), "one")} {
		if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "systemd-run") {
			t.Errorf("%s: %v, want ErrUnsupported with a remedy", what, err)
		}
	}
	list, mechanism, err := w.List()
	if err != nil || len(list) != 1 || mechanism != "" || snapshots.Busy(w.Dir) {
		t.Errorf("%v, %q, %v, busy: %v", list, mechanism, err, snapshots.Busy(w.Dir))
	}
	if _, err := os.Stat(filepath.Join(w.Files, "later")); err != nil {
		t.Errorf("after a refused rollback: %v", err)
	}
}

// TestInterruptedRollback verifies that a rollback is completed, however often an attempt fails.
func TestInterruptedRollback(t *testing.T) {
	t.Parallel()
	w := taken(t, "one", "f")
	tree(t, w.Files, "later")
	busy, record := filepath.Join(w.Dir, "snapshots/.busy"), filepath.Join(w.Dir, "snapshots/one/snapshot.json")
	must(t, os.WriteFile(busy, []byte(`{"rollback":"one"}`), 0o600))
	fails := func(what string, want error) {
		t.Helper()
		if err := w.Recover(t.Context()); !errors.Is(err, want) || !snapshots.Busy(w.Dir) {
			t.Errorf("%s: %v, want %v; busy: %v", what, err, want, snapshots.Busy(w.Dir))
		}
	}
	w.Processes = host.Processes{PID: 1 << 30}
	fails("without its process", backend.ErrLost)
	for _, path := range []string{busy, record} { // reading a directory fails
		must(t, errors.Join(os.Rename(path, path+".moved"), os.Mkdir(path, 0o700)))
		fails("with an unreadable "+filepath.Base(path), syscall.EISDIR)
		must(t, errors.Join(os.Remove(path), os.Rename(path+".moved", path)))
	}
	w.Processes = host.Processes{}
	must(t, w.Recover(t.Context()))
	if _, err := os.Stat(filepath.Join(w.Files, "later")); !os.IsNotExist(err) || snapshots.Busy(w.Dir) {
		t.Errorf("after a rollback: %v, busy: %v", err, snapshots.Busy(w.Dir))
	}
	must(t, os.WriteFile(busy, nil, 0o600)) // of a snapshot
	must(t, w.Recover(t.Context()))
	must(t, errors.Join(os.WriteFile(record, nil, 0o600), os.WriteFile(busy, []byte(`{"rollback":"one"}`), 0o600)))
	must(t, w.Recover(t.Context())) // a crash of the host must not lock the workspace
	must(t, w.Remove(t.Context(), "one"))
}

// TestOrdinaryUser verifies that an unprivileged user can roll back files whose modes forbid the owner to read or
// change them.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		asOrdinaryUser(t)
		return
	}
	dir := t.TempDir()
	w := &snapshots.Workspace{Dir: dir, Files: filepath.Join(dir, "files")}
	tree(t, w.Files, "ro/f", "none/f", "wo")
	modes := map[string]os.FileMode{"ro": 0o555, "none": 0, "wo": 0o200}
	for name, mode := range modes {
		must(t, os.Chmod(filepath.Join(w.Files, name), mode))
	}
	_, err := w.Take(t.Context(), "one")
	must(t, err)
	for name := range modes {
		must(t, os.Chmod(filepath.Join(w.Files, name), 0o700))
	}
	must(t, os.WriteFile(filepath.Join(w.Files, "wo"), nil, 0o600))
	must(t, os.Remove(filepath.Join(w.Files, "ro/f")))
	must(t, os.Remove(filepath.Join(w.Files, "none/f")))
	must(t, os.Chmod(filepath.Join(w.Files, "none"), 0))
	must(t, w.Rollback(t.Context(), "one"))
	for name, mode := range modes {
		path := filepath.Join(w.Files, name)
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want %o", name, st, err, mode)
		}
		must(t, os.Chmod(path, 0o700))
	}
	for _, name := range []string{"ro/f", "none/f", "wo"} {
		if got, err := os.ReadFile(filepath.Join(w.Files, name)); string(got) != name {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
}

// asOrdinaryUser runs the test again in a copy of this binary, as an unprivileged user.
func asOrdinaryUser(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	dir, err := os.MkdirTemp("/var/tmp", "workcell-snapshots-") // only root may have access to the temporary directory
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, errors.Join(os.Chmod(dir, 0o755), exec.Command("cp", self, dir+"/test").Run()))
	must(t, errors.Join(os.Mkdir(dir+"/tmp", 0o777), os.Chmod(dir+"/tmp", 0o777))) // regardless of the umask
	cmd := exec.Command(dir+"/test", "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Dir, cmd.Env = "/", []string{"TMPDIR=" + dir + "/tmp", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61234, Gid: 61234}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// disk creates a small disk and returns a directory on it.
func disk(t *testing.T, size int64) string {
	t.Helper()
	root, err := sizedfs.Mount(image(t, t.TempDir(), size))
	must(t, err)
	t.Cleanup(func() { must(t, unix.Close(root)) })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), root)
}

// TestForkIsSetAside verifies that a fork reserves all space of its file system, and that a fork without enough space
// fails and leaves no file.
func TestForkIsSetAside(t *testing.T) {
	t.Parallel()
	dir := disk(t, 64<<20)
	w := &snapshots.Workspace{Dir: dir, Image: image(t, dir, 24<<20)}
	_, err := w.Take(t.Context(), "one")
	must(t, err)
	fork := filepath.Join(dir, "fork.img")
	size := sizedfs.Spec{Bytes: 24 << 20, Files: 100}
	held, err := w.Fork(t.Context(), "one", snapshots.Target{Image: fork, Size: size})
	must(t, err)
	defer held.Close() //nolint:errcheck // only a descriptor
	var st unix.Stat_t
	if must(t, unix.Stat(fork, &st)); st.Blocks*512 < st.Size {
		t.Errorf("%d of %d bytes are set aside", st.Blocks*512, st.Size)
	}
	more := filepath.Join(dir, "more.img")
	if _, err := w.Fork(t.Context(), "one", snapshots.Target{Image: more, Size: size}); !errors.Is(err, backend.ErrNoRoom) {
		t.Errorf("on a full disk: %v, want ErrNoRoom", err)
	}
	if _, err := os.Lstat(more); !os.IsNotExist(err) {
		t.Errorf("the image of the failed fork exists: %v", err)
	}
}

// TestKeptFree verifies that snapshots and forks leave a part of the disk free, and that failed attempts leave no
// files.
func TestKeptFree(t *testing.T) {
	t.Parallel()
	dir := disk(t, 64<<20)
	w := &snapshots.Workspace{Dir: filepath.Join(dir, "w")}
	w.Files = filepath.Join(w.Dir, "files")
	must(t, os.MkdirAll(w.Files, 0o700))
	must(t, os.WriteFile(filepath.Join(w.Files, "f"), make([]byte, 9<<20), 0o600))
	fork := filepath.Join(dir, "fork")
	must(t, os.Mkdir(fork, 0o700))
	made := 0
	for ; ; made++ {
		_, err := w.Take(t.Context(), fmt.Sprint("s", made))
		if errors.Is(err, backend.ErrNoRoom) {
			break
		}
		must(t, err)
	}
	if _, err := w.Fork(t.Context(), "s0", snapshots.Target{Files: fork}); !errors.Is(err, backend.ErrNoRoom) {
		t.Errorf("a fork: %v, want ErrNoRoom", err)
	}
	var st unix.Statfs_t
	if must(t, unix.Statfs(dir, &st)); made == 0 || st.Bavail < st.Blocks/50 {
		t.Errorf("%d were made, and %d of %d blocks are free", made, st.Bavail, st.Blocks)
	}
	if names, err := os.ReadDir(filepath.Join(w.Dir, "snapshots")); err != nil || len(names) != made {
		t.Errorf("%d were made, there are %v, %v", made, names, err)
	}
	must(t, os.WriteFile(filepath.Join(w.Files, "f"), nil, 0o600))
	must(t, w.Rollback(t.Context(), "s0")) // uses the space of the removed contents
}

// TestCopiesOfEachOther verifies that two workspaces can copy snapshots from each other concurrently without a
// deadlock, and that copying from the same workspace returns an error.
func TestCopiesOfEachOther(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var both [2]*snapshots.Workspace
	for i := range both {
		both[i] = taken(t, fmt.Sprint("of", i), "f")
	}
	if err := both[0].Copy(ctx, both[0], "of0"); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("copy to the same workspace: %v", err)
	}
	var wg sync.WaitGroup
	for i, w := range both {
		wg.Go(func() {
			for range 50 {
				name := fmt.Sprint("of", 1-i)
				if err := errors.Join(w.Copy(ctx, both[1-i], name), w.Remove(ctx, name)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestCopyHasItsOwnMechanism verifies that a copied snapshot records the mechanism of the copy, not the mechanism of
// the original.
func TestCopyHasItsOwnMechanism(t *testing.T) {
	t.Parallel()
	var all [2]*snapshots.Workspace
	for i := range all {
		all[i] = taken(t, "s", "f")
	}
	made, _, err := all[1].List()
	must(t, err)
	want := made[0]
	file := filepath.Join(all[0].Dir, "snapshots", "s", "snapshot.json")
	text, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, bytes.ReplaceAll(text, []byte(want.Mechanism), []byte("origin's")), 0o600))
	must(t, all[1].Remove(t.Context(), "s"))
	must(t, all[1].Copy(t.Context(), all[0], "s"))
	if list, _, err := all[1].List(); err != nil || len(list) != 1 || list[0].Mechanism != want.Mechanism {
		t.Errorf("%+v, %v, want %s", list, err, want.Mechanism)
	}
}

// TestForkOfRemoved verifies that a fork during the removal of the origin has all files, or fails.
func TestForkOfRemoved(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprint("f", i))
	}
	for range 10 {
		w, to := taken(t, "s", names...), t.TempDir()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := snapshots.Alone(t.Context(), w.Dir, func() error { return os.RemoveAll(w.Dir) }); err != nil {
				t.Error(err)
			}
		})
		_, err := w.Fork(t.Context(), "s", snapshots.Target{Files: to})
		wg.Wait()
		if got, _ := os.ReadDir(to); err == nil && len(got) != len(names) || err != nil && !errors.Is(err, snapshots.ErrNone) {
			t.Errorf("%d files of %d, %v", len(got), len(names), err)
		}
	}
}

var must = checktest.Must

// tree creates files with these paths. Each file contains its own path.
func tree(t *testing.T, dir string, files ...string) {
	t.Helper()
	for _, f := range files {
		path := filepath.Join(dir, f)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(f), 0o600))
	}
}

// TestManyHardLinks verifies that a copy limits the memory for paths of hard links.
func TestManyHardLinks(t *testing.T) {
	t.Parallel()
	src := t.TempDir()
	tree(t, src, "x")
	must(t, os.Link(filepath.Join(src, "x"), filepath.Join(src, "y")))
	must(t, snapshots.Mirror(t.Context(), src, t.TempDir(), 0, snapshots.MaxLinked-100, func() {}))
	err := snapshots.Mirror(t.Context(), src, t.TempDir(), 0, snapshots.MaxLinked, func() {})
	if !errors.Is(err, backend.ErrTooLarge) || !strings.Contains(err.Error(), "hard links") {
		t.Errorf("%v, want ErrTooLarge", err)
	}
}

// TestDeepTree verifies that a copy fails if directories are nested deeper than maxDepth.
func TestDeepTree(t *testing.T) {
	t.Parallel()
	src := t.TempDir()
	at, err := unix.Open(src, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; i < 1200 && err == nil; i++ {
		if err = unix.Mkdirat(at, "dir", 0o700); err == nil {
			above := at
			at, err = unix.Openat(above, "dir", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			_ = unix.Close(above)
		}
	}
	must(t, err)
	must(t, unix.Close(at))
	if err := snapshots.Mirror(t.Context(), src, t.TempDir(), 0, 0, func() {}); !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
}

// TestShiftedACL verifies that a copy shifts the user and group IDs in access control lists together with the owners of
// files.
func TestShiftedACL(t *testing.T) {
	t.Parallel()
	const attr, nobody, shift = "system.posix_acl_access", 1<<32 - 1, 65_536
	list := func(block uint32) []byte {
		b := binary.LittleEndian.AppendUint32(nil, 2)
		// The entries are: owner, a user, owning group, a group, mask, others.
		for _, e := range [][2]uint32{{1, nobody}, {2, block + 1}, {4, nobody}, {8, block + 2}, {16, nobody}, {32, nobody}} {
			b = binary.LittleEndian.AppendUint32(b, 4<<16|e[0])
			b = binary.LittleEndian.AppendUint32(b, e[1])
		}
		return b
	}
	src, dst := filepath.Join(disk(t, 4<<20), "src"), filepath.Join(disk(t, 4<<20), "dst")
	tree(t, src, "x")
	must(t, os.Mkdir(dst, 0o700))
	must(t, unix.Setxattr(filepath.Join(src, "x"), attr, list(100_000), 0))
	must(t, snapshots.Mirror(t.Context(), src, dst, shift, 0, func() {}))
	got := make([]byte, 100)
	n, err := unix.Getxattr(filepath.Join(dst, "x"), attr, got)
	must(t, err)
	if want := list(100_000 + shift); !bytes.Equal(got[:n], want) {
		t.Errorf("%x, want %x", got[:n], want)
	}
}

// TestLinksInTheWay verifies that a command replacing paths with symbolic links during a restore cannot redirect writes
// outside of the workspace.
func TestLinksInTheWay(t *testing.T) {
	t.Parallel()
	src, dst, outside := t.TempDir(), t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "x")
	tree(t, outside, "x")
	tree(t, src, "d/x")
	must(t, os.Mkdir(filepath.Join(src, "e"), 0o700))
	must(t, os.Link(filepath.Join(src, "d/x"), filepath.Join(src, "e/x")))
	replaced := false
	must(t, snapshots.Mirror(t.Context(), src, dst, 0, 0, func() {
		for _, d := range []string{"d", "e"} { // the order of the copies is undefined
			at := filepath.Join(dst, d)
			if _, err := os.Stat(filepath.Join(at, "x")); err != nil || replaced {
				continue
			}
			replaced = true
			must(t, errors.Join(os.Rename(at, at+".moved"), os.Symlink(outside, at)))
		}
	}))
	var st unix.Stat_t
	if must(t, unix.Stat(secret, &st)); st.Nlink != 1 || !replaced {
		t.Errorf("the file outside has %d names; replaced: %v", st.Nlink, replaced)
	}
	before := st.Mode
	must(t, os.Symlink(secret, filepath.Join(dst, "pipe")))
	at, err := os.Open(dst)
	must(t, err)
	defer at.Close()
	if err := host.Chmod(int(at.Fd()), "pipe", 0o777); err == nil {
		t.Error("the mode of a link was changed")
	}
	if must(t, unix.Stat(secret, &st)); st.Mode != before {
		t.Errorf("the file outside has mode %o, had %o", st.Mode, before)
	}
}
