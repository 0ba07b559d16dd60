package host_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
)

// TestCgroup reads files as the kernel writes them for either version of control groups; a test machine has one of them.
func TestCgroup(t *testing.T) {
	t.Parallel()
	want := backend.Usage{CPU: 1500 * time.Millisecond, MemoryBytes: 4096}
	for _, c := range []struct {
		name  string
		v2    bool
		files map[string]string
		usage backend.Usage
		kills int64
	}{
		{"version 1", false, map[string]string{
			"cpuacct.usage": "1500000000\n", "memory.usage_in_bytes": "4096\n", "memory.oom_control": "under_oom 1\noom_kill 2\n",
		}, want, 2},
		{"version 2", true, map[string]string{
			"cpu.stat": "usage_usec 1500000\nuser_usec 7\nsystem_usec 8\n", "memory.current": "4096\n", "memory.events": "oom 1\noom_kill 2\n",
		}, want, 2},
		{"nothing", true, nil, backend.Usage{}, 0},
		{"odd", true, map[string]string{"cpu.stat": "user_usec 7\n", "memory.current": "max\n", "memory.events": "\n"}, backend.Usage{}, 0},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		g := host.Cgroup{V2: c.v2, Dirs: map[string]string{"cpu": dir, host.Accounting: dir, "memory": dir}}
		kills, ok := g.OOMKills()
		if got := g.Usage(); got != c.usage || kills != c.kills || ok != (c.kills > 0) {
			t.Errorf("%s: %+v, %d kills, %v", c.name, got, kills, ok)
		}
		maps.DeleteFunc(g.Dirs, func(string, string) bool { return true })
		if _, ok := g.OOMKills(); ok || g.Usage() != (backend.Usage{}) {
			t.Errorf("%s: counts without control groups", c.name)
		}
	}
}
