package host_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
)

// TestStrangers: a number that another process has here is no sandbox's main process. What EndOthers would end then is not tried.
func TestStrangers(t *testing.T) {
	t.Parallel()
	p := host.ProcessesOf(os.Getpid(), func(string) bool { return false })
	if p.Seen || host.IsApart(p) {
		t.Errorf("seen: %v, apart: %v", p.Seen, host.IsApart(p))
	}
	if p := host.ProcessesOf(os.Getpid(), func(string) bool { return true }); !p.Seen {
		t.Error("a process of the group is not taken for it")
	}
	if p := host.ProcessesOf(1<<30, func(string) bool { return true }); p.Seen || host.IsApart(p) {
		t.Error("no process is taken for one")
	}
}

// TestFreezeTakesTooLong: processes that do not stop are an error, and run again. A snapshot of them would be torn.
func TestFreezeTakesTooLong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.events"), []byte("populated 1\nfrozen 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if frozen, err := host.InGroup(dir).Freeze(t.Context()); frozen || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Freeze = %v, %v, want ErrUnavailable", frozen, err)
	}
	if state, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze")); string(state) != "0" {
		t.Errorf("the group is left at %q, %v", state, err)
	}
}
