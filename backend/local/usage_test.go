//go:build linux

package local_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/local"
)

// TestUsage reads files as the kernel writes them for either version of control groups; a test machine has one of them.
func TestUsage(t *testing.T) {
	t.Parallel()
	const name = "workcell-01234567-0123456789abcdef"
	want := backend.Usage{CPU: 1500 * time.Millisecond, MemoryBytes: 4096}
	for _, c := range []struct {
		name  string
		v2    bool
		files map[string]string
		want  backend.Usage
	}{
		{"version 1", false, map[string]string{"cpuacct.usage": "1500000000\n", "memory.usage_in_bytes": "4096\n"}, want},
		{"version 2", true, map[string]string{"cpu.stat": "usage_usec 1500000\nuser_usec 7\nsystem_usec 8\n", "memory.current": "4096\n"}, want},
		{"nothing", true, nil, backend.Usage{}},
		{"odd", true, map[string]string{"cpu.stat": "user_usec 7\n", "memory.current": "max\n"}, backend.Usage{}},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		dirs := map[string]string{"cpu": dir, "cpuacct": dir, "memory": dir, "pids": dir}
		if got := local.UsageOf(c.v2, dirs, name); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	if got := local.UsageOf(true, nil, name); got != (backend.Usage{}) {
		t.Errorf("without control groups: %+v", got)
	}
}
