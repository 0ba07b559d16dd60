package server

import (
	"os"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func (s *Server) handleHealth(r *request) error {
	h := wire.Health{
		UptimeMillis: time.Since(s.started).Milliseconds(),
		Running:      max(s.execs.active(), s.spawner.Alive()),
		CPUMillis:    cpuMillis(),
		Hosts:        s.orphan.count(0),
	}
	h.MemoryUsed, h.PIDsUsed = s.memory.Usage()
	return r.Answer(h)
}

// cpuMillis returns the sandbox's used CPU time. If the control group (version 2 or 1) does not report it, cpuMillis
// returns 0.
func cpuMillis() int64 {
	for _, file := range []struct {
		name, key string
		unit      int64
	}{
		{"/sys/fs/cgroup/cpu.stat", "usage_usec ", 1e3},
		{"/sys/fs/cgroup/cpuacct/cpuacct.usage", "", 1e6},
		{"/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "", 1e6},
	} {
		b, _ := os.ReadFile(file.name) // a missing file has no lines
		if n := proc.Counter(b, file.key); n >= 0 {
			return n / file.unit
		}
	}
	return 0
}
