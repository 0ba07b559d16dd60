package files

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/guest/disk"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestRenameNew verifies that renameNew behaves like renameat2 on a file system with support for the flag.
func TestRenameNew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{"dir", "full/inside"} {
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	for _, f := range []string{"one", "two"} {
		must(t, os.WriteFile(filepath.Join(dir, f), []byte(f), 0o600))
	}
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(at) //nolint:errcheck // only a handle
	for _, tc := range []struct {
		from, to string
		want     error
	}{
		{"one", "two", unix.EEXIST}, {"one", "three", nil}, {"dir", "two", unix.EEXIST}, {"dir", "full", unix.EEXIST},
		{"full", "moved", nil}, {"moved", "moved/inside/it", unix.EINVAL}, {"gone", "four", unix.ENOENT},
	} {
		if err := renameNew(at, tc.from, at, tc.to); !errors.Is(err, tc.want) {
			t.Errorf("%s to %s: %v, want %v", tc.from, tc.to, err, tc.want)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "three"))
	if err != nil || string(text) != "one" {
		t.Errorf("three has %q, %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "two")); err != nil || string(text) != "two" {
		t.Errorf("two has %q, %v", text, err)
	}
}

// put is a request with the contents "x".
type put struct{ io.Reader }

func (put) Write(p []byte) (int, error) { return len(p), nil }
func (put) Answer(any) error            { return nil }

// TestSlowName verifies that files can be written while other writes wait for the lock of a name.
func TestSlowName(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), make(disk.Gate, 2))
	must(t, err)
	s.root.fits = func(int64) error { return nil }
	write := func(name string) error {
		frames := wire.AppendEOF(wire.AppendData(nil, wire.ChanFile, []byte("x")), wire.ChanFile)
		return s.Put(put{bytes.NewReader(frames)}, &wire.FilePutRequest{Path: name, Size: 1, Overwrite: true})
	}
	slow := &s.names[crc32.ChecksumIEEE([]byte("slow"))%uint32(len(s.names))]
	slow.Lock()
	waiting := make(chan error)
	for range 3 {
		go func() { waiting <- write("slow") }()
	}
	for range 100 { // enough time for the waiting writes to occupy all slots
		if err := write("other"); err != nil {
			t.Error(err)
		}
	}
	slow.Unlock()
	for range 3 {
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	}
}
