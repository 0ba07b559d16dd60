package host_test

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestRemoveTree verifies that RemoveTree deletes trees of a hostile command, and deletes no files outside of them.
func TestRemoveTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	canary := filepath.Join(dir, "canary")
	must(t, os.MkdirAll(filepath.Join(canary, "sub"), 0o755))
	tree := filepath.Join(dir, "tree")
	must(t, os.Mkdir(tree, 0o755))
	must(t, os.Symlink(canary, filepath.Join(tree, "link")))
	must(t, os.Mkdir(filepath.Join(tree, ".lifted-1"), 0o755))
	for i := range 3000 {
		must(t, os.WriteFile(filepath.Join(tree, strconv.Itoa(i)), nil, 0o000))
	}
	at, err := unix.Open(tree, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 2000 { // deeper than the maximum path length
		must(t, unix.Mkdirat(at, "deep-deep", 0o700))
		must(t, unix.Symlinkat(canary, at, "link2"))
		next, err := unix.Openat(at, "deep-deep", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
	for _, path := range []string{tree, filepath.Join(dir, "none")} {
		var wg sync.WaitGroup
		for range 3 { // concurrently
			wg.Go(func() {
				if err := host.RemoveTree(t.Context(), path); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			})
		}
		wg.Wait()
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s still exists: %v", path, err)
		}
	}
	if _, err := os.Stat(filepath.Join(canary, "sub")); err != nil {
		t.Error(err)
	}
}

var must = checktest.Must
