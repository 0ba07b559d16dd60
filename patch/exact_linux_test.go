package patch_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/patch"
)

// TestLinkAtAnyMoment: nothing is written through a link that is exchanged with a directory of the path all the time.
func TestLinkAtAnyMoment(t *testing.T) {
	t.Parallel()
	base, err := filepath.EvalSymlinks(t.TempDir())
	victim, real, link := filepath.Join(base, "victim"), filepath.Join(base, "real"), filepath.Join(base, "link")
	if err := errors.Join(err, os.MkdirAll(filepath.Join(victim, "project"), 0o755),
		os.MkdirAll(filepath.Join(real, "project"), 0o755), os.Symlink(victim, link)); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, real, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(stop); <-done }()
	entry := &patch.Entry{Mode: 0o644, Content: []byte("x")}
	p := &patch.Patch{Changes: []patch.Change{{Path: "new", New: entry}}}
	for range 20_000 {
		_, _ = p.Apply(filepath.Join(real, "project")) // most fail
		if _, err := os.Lstat(filepath.Join(victim, "project", "new")); err == nil {
			t.Fatal("written through a link")
		}
	}
}
