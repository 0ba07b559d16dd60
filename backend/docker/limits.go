package docker

import (
	"fmt"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
)

const (
	mib = 1 << 20

	// guestMemory and guestPIDs come on top of the user's limits, so that the guest's own needs take nothing of them.
	guestMemory = 10 * mib
	guestPIDs   = 20

	// minMemory is what a sandbox needs to start at all, beside the guest.
	minMemory = 16 * mib
	// minCPU is the smallest quota an engine takes.
	minCPU = 10
	// minFiles keeps the guest alive under a small limit; commands get the user's own through the guest.
	minFiles = 1024
	// maxFileBytes bounds the size of every file where the user asked for no bound.
	maxFileBytes = 16 << 30

	shmBytes = 64 * mib // of /dev/shm, which counts against memory; less under a small limit
	// imageVolumeBytes is the size of what is mounted where an image declares a VOLUME.
	imageVolumeBytes = 64 * mib
	// tmpInodes bounds the files in a tmpfs: each costs kernel memory beyond its pages.
	bytesPerInode = 4096
)

func defaultLimits() backend.Limits {
	return backend.Limits{CPUMillis: 1000, MemoryBytes: 2048 * mib, PIDs: 256, TmpBytes: 256 * mib, OpenFiles: 16384}
}

// withDefaults fills the zero fields of l from d.
func withDefaults(l, d backend.Limits) backend.Limits {
	fill := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	fill(&l.CPUMillis, d.CPUMillis)
	fill(&l.MemoryBytes, d.MemoryBytes)
	fill(&l.PIDs, d.PIDs)
	fill(&l.TmpBytes, d.TmpBytes)
	fill(&l.WorkspaceBytes, d.WorkspaceBytes)
	fill(&l.OpenFiles, d.OpenFiles)
	fill(&l.FileBytes, d.FileBytes)
	return l
}

// defaulted fills the zero fields of what a sandbox asks for. What lies in /tmp is memory that nothing can take back: where
// it could take all of a small limit, even the command that is to delete it would be killed. So a size that nobody asked
// for is at most half of the memory.
func defaulted(asked, d backend.Limits) backend.Limits {
	l := withDefaults(asked, d)
	if asked.TmpBytes == 0 {
		l.TmpBytes = min(l.TmpBytes, l.MemoryBytes/2)
	}
	return l
}

// shmSize bounds /dev/shm, which nobody can ask for, to a quarter of the memory for the same reason.
func shmSize(l backend.Limits) int64 { return min(shmBytes, l.MemoryBytes/4) }

// checkLimits refuses what no engine could enforce. Zero fields are fine.
func checkLimits(l backend.Limits) error {
	for _, c := range []struct {
		name     string
		v        int64
		min, max int64
	}{
		{"cpu_millicores", l.CPUMillis, minCPU, 1 << 20},
		{"memory_bytes", l.MemoryBytes, minMemory, 1 << 50},
		{"pids", l.PIDs, 1, 1 << 22},
		{"tmp_bytes", l.TmpBytes, bytesPerInode, 1 << 50},
		{"workspace_bytes", l.WorkspaceBytes, 64 * 1024, 1 << 50},
		{"open_files", l.OpenFiles, 16, 1 << 20},
		{"file_bytes", l.FileBytes, 1, 1 << 60},
	} {
		if c.v != 0 && (c.v < c.min || c.v > c.max) {
			return fmt.Errorf("limit %s is %d, want %d to %d: %w", c.name, c.v, c.min, c.max, backend.ErrInvalid)
		}
	}
	return nil
}

// enforceable refuses limits that the user asked for and this engine would drop, and engines that cannot limit memory
// and processes at all: no sandbox runs without. Other defaults that the engine cannot enforce are left out by
// resources; Capabilities tells of it.
func (e *engine) enforceable(asked backend.Limits) error {
	switch {
	case !e.memory || !e.caps.PIDs:
		return fmt.Errorf("docker: this engine cannot limit memory and processes (rootless on cgroup version 1?): %w", backend.ErrUnsupported)
	case asked.MemoryBytes > 0 && !e.caps.Memory:
		return fmt.Errorf("docker: this engine cannot limit memory and swap: %w", backend.ErrUnsupported)
	case asked.CPUMillis > 0 && !e.caps.CPU:
		return fmt.Errorf("docker: this engine cannot limit CPU time: %w", backend.ErrUnsupported)
	}
	return nil
}

// resources translates limits. What the engine cannot do was refused before when it was asked for.
func (e *engine) resources(l backend.Limits, means backend.WorkspaceMeans) container.Resources {
	var r container.Resources
	if e.memory {
		r.Memory = l.MemoryBytes + guestMemory
	}
	if e.caps.Memory {
		r.MemorySwap = r.Memory // memory and swap together: no swap on top
	}
	if e.caps.CPU {
		// The engine refuses more than it has; having less than asked for is bound enough.
		r.NanoCPUs = min(l.CPUMillis*1e6, int64(e.cpus)*1e9)
	}
	if e.caps.PIDs {
		pids := l.PIDs + guestPIDs
		r.PidsLimit = &pids
	}
	files := max(l.OpenFiles, minFiles)
	size := int64(maxFileBytes)
	if l.FileBytes > 0 {
		size = max(size, l.FileBytes) // the guest sets the user's own, which may be smaller than its own files
	}
	if means == backend.WorkspaceWatched {
		size = min(size, l.WorkspaceBytes) // which no single file can pass then
	}
	r.Ulimits = []*container.Ulimit{
		{Name: "core"},
		{Name: "nofile", Soft: files, Hard: files},
		{Name: "fsize", Soft: size, Hard: size},
	}
	return r
}

func inodes(bytes int64) int64 { return max(bytes/bytesPerInode, 16) }
