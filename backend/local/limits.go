package local

import (
	"fmt"

	"github.com/workcell-dev/workcell/backend"
)

const (
	mib = 1 << 20

	// guestMemory and guestPIDs come on top of the user's limits, so that the guest's own needs take nothing of them.
	guestMemory = 10 * mib
	guestPIDs   = 20

	minMemory = 16 * mib // what a sandbox needs to start at all, beside the guest
	minCPU    = 10       // the smallest quota that the kernel takes
	minFiles  = 1024     // keeps the guest alive under a small limit; commands get the user's own through the guest
	// maxFileBytes bounds the size of every file where the user asked for no bound.
	maxFileBytes = 16 << 30
	shmBytes     = 64 * mib // of /dev/shm, which counts against memory; less under a small limit
	// bytesPerInode bounds the files in a tmpfs: each costs kernel memory beyond its pages.
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

// defaulted fills the zero fields of what a sandbox asks for. What lies in /tmp is memory that nothing can take back, so
// a size that nobody asked for is at most half of the memory.
func defaulted(asked, d backend.Limits) backend.Limits {
	l := withDefaults(asked, d)
	if asked.TmpBytes == 0 {
		l.TmpBytes = min(l.TmpBytes, l.MemoryBytes/2)
	}
	return l
}

// shmSize bounds /dev/shm, which nobody can ask for, to a quarter of the memory for the same reason.
func shmSize(l backend.Limits) int64 {
	if l.MemoryBytes == 0 { // nothing enforces a limit
		return shmBytes
	}
	return min(shmBytes, l.MemoryBytes/4)
}

func inodes(bytes int64) int64 { return max(bytes/bytesPerInode, 16) }

// checkLimits refuses what could never be enforced. Zero fields are fine.
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
