package host_test

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend/internal/host"
)

// TestRemoveTree deletes trees as a hostile command may leave them, and nothing beside them.
func TestRemoveTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	canary := filepath.Join(dir, "canary")
	if err := os.MkdirAll(filepath.Join(canary, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(canary, filepath.Join(tree, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(tree, ".lifted-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		if err := os.WriteFile(filepath.Join(tree, strconv.Itoa(i)), nil, 0o000); err != nil {
			t.Fatal(err)
		}
	}
	at, err := unix.Open(tree, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 { // deeper than a path can be
		if err := unix.Mkdirat(at, "deep-deep", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Symlinkat(canary, at, "link2"); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "deep-deep", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Close(at); err != nil {
			t.Fatal(err)
		}
		at = next
	}
	if err := unix.Close(at); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{tree, filepath.Join(dir, "none")} {
		var wg sync.WaitGroup
		for range 3 { // at a time
			wg.Go(func() {
				if err := host.RemoveTree(t.Context(), path); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			})
		}
		wg.Wait()
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	if _, err := os.Stat(filepath.Join(canary, "sub")); err != nil {
		t.Error(err)
	}
}
