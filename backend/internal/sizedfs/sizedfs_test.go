//go:build linux

package sizedfs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestSize verifies that a file system has the requested capacity and hardly more, and that all space stays reserved.
func TestSize(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{4 << 20, 63 << 20, 64 << 20, 500 << 20} {
		file := filepath.Join(t.TempDir(), "image")
		must(t, sizedfs.Format(t.Context(), file, sizedfs.Spec{Bytes: size, Files: size / 4096, UID: 1000, GID: 100}))
		detached(t, file) // e2fsck needs an unmounted file system
		if out, err := exec.Command("/sbin/e2fsck", "-fn", file).CombinedOutput(); err != nil {
			t.Errorf("%d bytes: %v\n%s", size, err, out)
		}
		use(t, file, size)
		must(t, os.Remove(file))
	}
}

// setAside reports whether a file has no holes.
func setAside(t *testing.T, file string) bool {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(file, &st))
	return st.Blocks*512 >= st.Size
}

// use mounts a file system, checks the size, and writes and deletes files in it.
func use(t *testing.T, file string, size int64) {
	t.Helper()
	d, err := sizedfs.Attach(file)
	must(t, err)
	second, err := sizedfs.Attach(file)
	if err != nil || second.Name() != d.Name() {
		t.Errorf("attached again: %+v, %v, first %s", second, err, d.Name())
	}
	at := mount(t, file, sizedfs.Options)
	check(t, at, size, size/4096)
	err = churn(filepath.Join(at, "f"))
	unmount(t, at)
	must(t, errors.Join(err, second.Close(), d.Close()))
	if !setAside(t, file) {
		t.Errorf("%d bytes: not all is set aside", size)
	}
	detached(t, file)
}

// TestFeatures verifies that a file system has no features other than the expected features.
func TestFeatures(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "image")
	must(t, sizedfs.Format(t.Context(), file, sizedfs.Spec{Bytes: 4 << 20, Files: 64}))
	detached(t, file) // a mounted file system has another feature
	out, err := exec.Command("/sbin/dumpe2fs", "-h", file).Output()
	must(t, err)
	_, after, _ := strings.Cut(string(out), "Filesystem features:")
	line, _, _ := strings.Cut(after, "\n")
	want := "has_journal ext_attr dir_index filetype extent 64bit flex_bg sparse_super large_file huge_file dir_nlink " +
		"extra_isize metadata_csum"
	if got := strings.TrimSpace(line); got != want {
		t.Errorf("features %q, want %q", got, want)
	}
}

// TestHiddenDevice verifies that a file does not get a second device if its device is not accessible, and that another
// Attach opens the device only for reading.
func TestHiddenDevice(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "image")
	must(t, errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<20)))
	d, err := sizedfs.Attach(file)
	must(t, err)
	second, err := sizedfs.Attach(file)
	must(t, err)
	if flags, err := unix.FcntlInt(second.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY {
		t.Errorf("opened with %#x, %v", flags, err)
	}
	must(t, host.OnThread(func() error {
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("/dev/null", d.Name(), "", unix.MS_BIND, ""))
		if err != nil {
			return err
		}
		if third, err := sizedfs.Attach(file); err == nil {
			return fmt.Errorf("a second device: %s, %w", third.Name(), third.Close())
		}
		return nil
	}))
	must(t, errors.Join(second.Close(), d.Close()))
	detached(t, file)
}

// detached waits until a file's loop device is released. A program started at the same time can hold the device for a
// moment.
func detached(t *testing.T, file string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); attached(t, file); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the loop device stays")
		}
	}
}

// churn performs operations on a new file, which could punch holes in the file system's file.
func churn(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	const size = 2 << 20
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	for at := int64(0); err == nil && at < size; at += 16 << 10 { // next to unwritten blocks
		if _, err = f.WriteAt([]byte("x"), at); err == nil && at%(256<<10) == 0 {
			err = f.Sync()
		}
	}
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size/2)
	}
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(name))
}

func check(t *testing.T, at string, size, files int64) {
	t.Helper()
	var fs unix.Statfs_t
	var st unix.Stat_t
	must(t, unix.Statfs(at, &fs))
	if room := int64(fs.Bavail) * fs.Bsize; room < size || room > size+size/50 {
		t.Errorf("%d bytes of room, want %d", room, size)
	}
	if n := int64(fs.Ffree); n < files || n > files+files/50+64 {
		t.Errorf("room for %d files, want %d", n, files)
	}
	if names, err := os.ReadDir(at); err != nil || len(names) != 0 {
		t.Errorf("it holds %v, %v", names, err)
	}
	if err := unix.Stat(at, &st); err != nil || st.Uid != 1000 || st.Gid != 100 {
		t.Errorf("it belongs to %d:%d, %v", st.Uid, st.Gid, err)
	}
}

// attached reports whether a file has a loop device.
func attached(t *testing.T, file string) bool {
	t.Helper()
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must(t, err)
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(b), file) {
			return true
		}
	}
	return false
}

// TestNothingHalf verifies that a failed Format leaves no file, and that Probe leaves no files.
func TestNothingHalf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := sizedfs.Format(t.Context(), filepath.Join(dir, "image"), sizedfs.Spec{Bytes: 1 << 62, Files: 16}); err == nil {
		t.Error("4 EiB were made")
	}
	must(t, sizedfs.Probe(t.Context(), dir))
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

var must = checktest.Must
