package files

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRenameNew: what renameat2 does where a file system has its flag.
func TestRenameNew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{"dir", "full/inside"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(f), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
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
