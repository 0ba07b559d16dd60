package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func write(t *testing.T, name string) {
	t.Helper()
	must(t, os.WriteFile(name, []byte("x"), 0o600))
}

func makeDir(t *testing.T, name string) {
	t.Helper()
	must(t, os.MkdirAll(name, 0o700))
}

func mode(t *testing.T, name string) os.FileMode {
	t.Helper()
	info, err := os.Stat(name)
	must(t, err)
	return info.Mode().Perm()
}

// TestMeasureDeep verifies that a tree up to the maximum depth is counted, and a deeper tree counts as over the limit.
func TestMeasureDeep(t *testing.T) {
	t.Parallel()
	for depth, deep := range map[int]bool{measureDepth: false, measureDepth + 1: true} {
		dir := t.TempDir()
		makeDir(t, filepath.Join(dir, strings.Repeat("d/", depth)))
		s, up := scanOf(t, dir)
		if s.walk(up); s.files != int64(depth) || s.blind != deep {
			t.Errorf("found %d of %d, blind %t", s.files, depth, s.blind)
		}
	}
}

// scanOf starts a scan of dir.
func scanOf(t *testing.T, dir string) (*scan, *level) {
	t.Helper()
	f, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	s := &scan{ctx: t.Context(), uid: uint32(os.Getuid()), most: 1 << 40, twice: map[FileID]struct{}{}, buf: make([]byte, 1<<13)}
	s.dev = device(t, dir)
	return s, &level{fd: int(f.Fd())}
}

// TestMeasureModes verifies that a directory opened by a scan gets its mode back, even if it was moved. If a command
// changed the mode during the scan, the command's mode is kept, even if it equals the scan's mode.
func TestMeasureModes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, up := scanOf(t, dir)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	makeDir(t, a)
	enter := func() *level {
		must(t, os.Chmod(a, 0o030))
		d := s.open(up, "a")
		if d == nil {
			t.Fatal("the directory does not open")
		}
		return d
	}
	if enter().shut(); mode(t, a) != 0o030 {
		t.Errorf("afterwards its mode is %o", mode(t, a))
	}
	d := enter()
	if err := os.Chmod(a, 0o530); err != nil { // the mode set by the scan itself
		t.Fatal(err)
	}
	if s.walk(d); mode(t, a) != 0o530 {
		t.Errorf("during the look it got mode 530 and has %o", mode(t, a))
	}
	if d.shut(); mode(t, a) != 0o530 {
		t.Errorf("the mode that the look needed is now %o", mode(t, a))
	}
	d = enter()
	must(t, os.Chmod(a, 0o750))
	if d.shut(); mode(t, a) != 0o750 {
		t.Errorf("the mode set during the look is now %o", mode(t, a))
	}
	d = enter()
	must(t, os.Rename(a, b))
	makeDir(t, a)
	if d.shut(); mode(t, b) != 0o030 || mode(t, a) != 0o700 {
		t.Errorf("the mode of the moved directory is %o, of the new directory %o", mode(t, b), mode(t, a))
	}
}

// TestMeasureClosedRoot verifies that a scan works if the mode of the workspace directory denies access.
func TestMeasureClosedRoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	write(t, filepath.Join(dir, "f"))
	for _, m := range []os.FileMode{0, 0o311, 0o644} {
		must(t, os.Chmod(dir, m))
		if found, blind := measure(t.Context(), f, Limit{Bytes: 1 << 40}, 0, nil, nil); found.files < 1 || blind || mode(t, dir) != m {
			t.Errorf("mode %o: %+v, %t, afterwards %o", m, found, blind, mode(t, dir))
		}
	}
	must(t, os.Chmod(dir, 0o700))
}

// TestMeasureNothing verifies that an inaccessible directory counts as over the limit.
func TestMeasureNothing(t *testing.T) {
	t.Parallel()
	f, err := os.Open(t.TempDir())
	must(t, err)
	_ = f.Close()
	l := Limit{Bytes: 5}
	if found, blind := measure(t.Context(), f, l, 0, nil, nil); !blind || !l.over(found) {
		t.Errorf("%+v, %t", found, blind)
	}
}

func device(t *testing.T, name string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(name, &st))
	return st.Dev
}

// TestMeasureSince verifies that unchanged files do not count, and directories below an unchanged directory are
// skipped. An overlay changes no files below an unchanged directory.
func TestMeasureSince(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, sub := range []string{"old/same", "old/new"} {
		makeDir(t, filepath.Join(dir, sub))
		write(t, filepath.Join(dir, sub, "f"))
	}
	since := time.Now().Add(time.Hour).UnixNano()
	s, up := scanOf(t, dir)
	s.since = since
	if s.walk(up); s.usage != (usage{}) {
		t.Errorf("found %+v, where nothing changed", s.usage)
	}
	f := &level{fd: up.fd}
	if _, err := unix.Seek(f.fd, 0, unix.SEEK_SET); err != nil {
		t.Fatal(err)
	}
	s.since = 1
	if s.walk(f); s.files != 5 {
		t.Errorf("found %+v, want 5 entries", s.usage)
	}
}
