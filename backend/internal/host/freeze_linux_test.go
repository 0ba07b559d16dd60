package host_test

import (
	"os"
	"testing"

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
