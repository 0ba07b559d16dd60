package server

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func (s *Server) handleHealth(r *request) error {
	running, recorded := s.execs.counts()
	h := wire.Health{
		UptimeMillis: time.Since(s.started).Milliseconds(),
		Running:      running,
		Recorded:     recorded,
		RSSBytes:     ownRSS(),
		Goroutines:   runtime.NumGoroutine(),
		Zombies:      proc.Zombies(),
		OOMKills:     max(0, s.oom.Read()),
	}
	h.MemoryUsed = firstNumber("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
	h.MemoryLimit = firstNumber("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
	h.PIDsUsed = firstNumber("/sys/fs/cgroup/pids.current", "/sys/fs/cgroup/pids/pids.current")
	h.CPUMillis = cpuMillis()
	h.WorkspaceUsed = s.quotas.Workspace.Now()
	h.Secondary = int(s.secondary.Load())
	return r.Answer(h)
}

// cpuMillis is the CPU time that the sandbox has used; 0 when its control group does not show.
func cpuMillis() int64 {
	if b, err := os.ReadFile("/sys/fs/cgroup/cpu.stat"); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "usage_usec "); ok {
				n, _ := strconv.ParseInt(v, 10, 64) // the kernel writes a number
				return n / 1000
			}
		}
	}
	return firstNumber("/sys/fs/cgroup/cpuacct/cpuacct.usage", "/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage") / 1e6
}

func ownRSS() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	f := strings.Fields(string(b))
	if err != nil || len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64) // the kernel writes a number
	return pages * int64(os.Getpagesize())
}

// firstNumber reads the first of the files that is there; 0 when none is or it holds "max".
func firstNumber(files ...string) int64 {
	for _, name := range files {
		if b, err := os.ReadFile(name); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no limit, which is 0 here
			return n
		}
	}
	return 0
}
