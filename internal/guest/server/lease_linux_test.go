//go:build linux

package server_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestOrphanTimeout: a guest ends when no host has been there for its time, but neither while one is connected nor while a
// command runs.
func TestOrphanTimeout(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const timeout = 2 * time.Second // in which its host must have come
	ended := make(chan struct{})
	s, err := server.New(server.Config{Workdir: dir, OrphanTimeout: timeout, Orphaned: func() { close(ended) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	c := connect(t, s)
	sh := func(id, script string, yield int64) {
		t.Helper()
		spawn := wire.Spawn{Argv: []string{"/bin/sh", "-c", script}, Dir: dir}
		if _, err := c.Run(t.Context(), wire.RunRequest{ExecID: id, YieldMillis: yield, Spawn: spawn}); err != nil {
			t.Fatal(err)
		}
	}
	sh("first", "sleep 0.1", -1)
	time.Sleep(timeout * 3 / 2) // long enough for a guest that does not see its host
	sh("second", "sleep 3; touch done", 0)
	select {
	case <-ended:
		t.Error("it ended under its host")
	default:
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		t.Errorf("it ended under its command: %v", err)
	}
}
