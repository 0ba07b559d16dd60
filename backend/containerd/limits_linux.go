package containerd

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// cpuPeriod is the time, in microseconds, over which a CPU quota is counted; the kernel's and Docker's own.
const cpuPeriod = 100_000

// resources translates limits. What the machine cannot do was refused before when it was asked for. Every device is
// denied; the runtime itself lets through the harmless ones that every container has.
func (e *engine) resources(l backend.Limits) *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	if e.memory {
		memory := l.MemoryBytes + kit.GuestMemory
		r.Memory = &specs.LinuxMemory{Limit: new(memory)}
		if e.caps.Memory {
			r.Memory.Swap = new(memory) // memory and swap together: no swap on top
		}
	}
	if e.caps.CPU {
		// Having less than asked for is bound enough.
		quota := min(l.CPUMillis, int64(e.cpus)*1000) * cpuPeriod / 1000
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: new(uint64(cpuPeriod))}
	}
	if e.caps.PIDs {
		r.Pids = &specs.LinuxPids{Limit: new(l.PIDs + kit.GuestPIDs)}
	}
	return r
}

// rlimits bound every process from its first instruction.
func rlimits(r *record) []specs.POSIXRlimit {
	l := r.config.Limits
	files, size := uint64(kit.OpenFiles(l)), uint64(kit.FileBytes(l, r.config.Workspace, r.config.RootBytes))
	return []specs.POSIXRlimit{
		{Type: "RLIMIT_CORE"},
		{Type: "RLIMIT_NOFILE", Soft: files, Hard: files},
		{Type: "RLIMIT_FSIZE", Soft: size, Hard: size},
	}
}
