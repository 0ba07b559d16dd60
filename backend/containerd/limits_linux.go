package containerd

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// resources converts limits to the runtime's form. Requested limits not enforceable on the host have already been
// rejected. All devices are denied. The runtime adds the harmless devices of every container.
func (e *engine) resources(l backend.Limits) *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	if e.memory {
		memory := l.MemoryBytes + kit.GuestMemory
		r.Memory = &specs.LinuxMemory{Limit: new(memory)}
		if e.caps.Memory {
			r.Memory.Swap = new(memory) // memory and swap together, so no additional swap
		}
	}
	if e.caps.CPU {
		quota, period := kit.CPUQuota(l, e.cpus)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: new(uint64(period))}
	}
	if e.caps.PIDs {
		r.Pids = &specs.LinuxPids{Limit: new(l.PIDs + kit.GuestPIDs)}
	}
	return r
}

// rlimits returns the limits for every process from the first instruction.
func rlimits(r *record) []specs.POSIXRlimit {
	l := r.config.Limits
	files, size := uint64(kit.OpenFiles(l)), uint64(kit.FileBytes(l, r.config.Workspace, r.config.RootBytes))
	return []specs.POSIXRlimit{
		{Type: "RLIMIT_CORE"},
		{Type: "RLIMIT_NOFILE", Soft: files, Hard: files},
		{Type: "RLIMIT_FSIZE", Soft: size, Hard: size},
	}
}
