package host_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
)

// TestStrangers verifies that a process outside the expected group is not accepted as a sandbox's main process.
func TestStrangers(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		if p := host.ProcessesOf(os.Getpid(), func(string) bool { return own }); p.Seen != own {
			t.Errorf("Seen = %v, want %v", p.Seen, own)
		}
	}
	if p := host.ProcessesOf(1<<30, func(string) bool { return true }); p.Seen || p.CanFreeze() {
		t.Error("no process is taken for one")
	}
}

// TestFreezeFails verifies the errors for unfreezable processes, and that Freeze thaws the processes after a failure.
func TestFreezeFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "cgroup.events"), []byte("populated 1\nfrozen 0\n"), 0o600))
	for what, c := range map[string]struct {
		processes host.Processes
		want      error
	}{
		"busy":            {host.InGroup(os.Getpid(), dir), backend.ErrUnavailable},
		"no group":        {host.Processes{PID: os.Getpid()}, backend.ErrUnsupported},
		"exited":          {host.Processes{PID: 1 << 30}, backend.ErrLost},
		"stopped sandbox": {},
	} {
		if err := c.processes.Freeze(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: Freeze = %v, want %v", what, err, c.want)
		}
	}
	if state, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze")); string(state) != "0" {
		t.Errorf("the group is left at %q, %v", state, err)
	}
}
