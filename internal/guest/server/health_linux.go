package server

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func (s *Server) handleHealth(r *request) error {
	h := wire.Health{
		UptimeMillis:  time.Since(s.started).Milliseconds(),
		Running:       max(s.execs.active(), s.spawner.Alive()),
		RSSBytes:      ownRSS(),
		Zombies:       proc.Zombies(),
		CPUMillis:     cpuMillis(),
		WorkspaceUsed: s.quotas.Workspace.Now(),
		Hosts:         int(s.hosts.Load()),
	}
	h.MemoryUsed, h.MemoryLimit, h.PIDsUsed = s.memory.Usage()
	return r.Answer(h)
}

// cpuMillis is the CPU time that the sandbox has used; 0 when its control group, of version 2 or 1, does not show.
func cpuMillis() int64 {
	for _, file := range []struct {
		name, key string
		unit      int64
	}{
		{"/sys/fs/cgroup/cpu.stat", "usage_usec ", 1e3},
		{"/sys/fs/cgroup/cpuacct/cpuacct.usage", "", 1e6},
		{"/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "", 1e6},
	} {
		b, _ := os.ReadFile(file.name) // what is not there has no lines
		if n := proc.Counter(b, file.key); n >= 0 {
			return n / file.unit
		}
	}
	return 0
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
