package host_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend/internal/host"
)

// TestOOMKills verifies that OOMKills reads the kernel's files for both versions of control groups.
// Without a group, it does not read a file of the working directory, which may be a pipe.
func TestOOMKills(t *testing.T) {
	t.Chdir(t.TempDir())
	must(t, unix.Mkfifo("memory.oom_control", 0o600))
	for name, c := range map[string]struct {
		v2   bool
		file string
		text string
		want int64
	}{
		"version 1": {false, "memory.oom_control", "under_oom 1\noom_kill 2\n", 2},
		"version 2": {true, "memory.events", "oom 1\noom_kill 2\n", 2},
		"missing":   {true, "other", "", 0},
		"odd":       {true, "memory.events", "\noom_kill\n", 0},
	} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o600))
		if got := host.OOMKills(dir, c.v2); got != c.want {
			t.Errorf("%s: %d kills, want %d", name, got, c.want)
		}
	}
	if host.OOMKills("", false) != 0 {
		t.Error("no group has kills")
	}
}
