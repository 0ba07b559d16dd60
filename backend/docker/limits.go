package docker

import (
	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// resources converts limits to the engine's form. For root, see kit.FileBytes. Requested limits not enforceable by the
// engine have already been rejected.
func (e *engine) resources(l backend.Limits, root int64) container.Resources {
	var r container.Resources
	if e.memory {
		r.Memory = l.MemoryBytes + kit.GuestMemory
	}
	if e.caps.Memory {
		r.MemorySwap = r.Memory // memory and swap together, so no additional swap
	}
	if e.caps.CPU {
		// The engine rejects more CPUs than the host has. The host's CPUs are a sufficient limit in this case.
		r.NanoCPUs = min(l.CPUMillis*1e6, int64(e.cpus)*1e9)
	}
	if e.caps.PIDs {
		r.PidsLimit = new(l.PIDs + kit.GuestPIDs)
	}
	files, size := kit.OpenFiles(l), kit.FileBytes(l, backend.WorkspaceWatched, root)
	r.Ulimits = []*container.Ulimit{
		{Name: "core"},
		{Name: "nofile", Soft: files, Hard: files},
		{Name: "fsize", Soft: size, Hard: size},
	}
	return r
}
