package containerd

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend"
)

const (
	mib = 1 << 20

	// guestMemory and guestPIDs come on top of the user's limits, so that the guest's own needs take nothing of them.
	guestMemory = 10 * mib
	guestPIDs   = 20

	// minMemory is what a sandbox needs to start at all, beside the guest.
	minMemory = 16 * mib
	// minCPU is the smallest quota a kernel takes.
	minCPU = 10
	// minFiles keeps the guest alive under a small limit; commands get the user's own through the guest.
	minFiles = 1024
	// maxFileBytes bounds the size of every file where the user asked for no bound.
	maxFileBytes = 16 << 30

	shmBytes = 64 * mib // of /dev/shm, which counts against memory; less under a small limit
	// imageVolumeBytes is the size of what is mounted where an image declares a VOLUME.
	imageVolumeBytes = 64 * mib
	// bytesPerInode bounds the files in a tmpfs: each costs kernel memory beyond its pages.
	bytesPerInode = 4096

	// cpuPeriod is the time, in microseconds, over which a CPU quota is counted; the kernel's and Docker's own.
	cpuPeriod = 100_000
)

func defaultLimits() backend.Limits {
	return backend.Limits{CPUMillis: 1000, MemoryBytes: 2048 * mib, PIDs: 256, TmpBytes: 256 * mib, OpenFiles: 16384}
}

// withDefaults fills the zero fields of l from d.
func withDefaults(l, d backend.Limits) backend.Limits {
	setDefault(&l.CPUMillis, d.CPUMillis)
	setDefault(&l.MemoryBytes, d.MemoryBytes)
	setDefault(&l.PIDs, d.PIDs)
	setDefault(&l.TmpBytes, d.TmpBytes)
	setDefault(&l.WorkspaceBytes, d.WorkspaceBytes)
	setDefault(&l.OpenFiles, d.OpenFiles)
	setDefault(&l.FileBytes, d.FileBytes)
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

// enforceable refuses limits that the user asked for and this machine would drop, and machines that cannot limit memory
// and processes at all: no sandbox runs without.
func (e *engine) enforceable(asked backend.Limits) error {
	switch {
	case !e.memory || !e.caps.PIDs:
		return fmt.Errorf("containerd: this machine's cgroups cannot limit memory and processes: %w", backend.ErrUnsupported)
	case asked.MemoryBytes > 0 && !e.caps.Memory:
		return fmt.Errorf("containerd: this machine cannot limit memory and swap: %w", backend.ErrUnsupported)
	case asked.CPUMillis > 0 && !e.caps.CPU:
		return fmt.Errorf("containerd: this machine cannot limit CPU time: %w", backend.ErrUnsupported)
	}
	return nil
}

// resources translates limits. What the machine cannot do was refused before when it was asked for. Every device is
// denied; the runtime itself lets through the harmless ones that every container has.
func (e *engine) resources(l backend.Limits) *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	if e.memory {
		memory := l.MemoryBytes + guestMemory
		r.Memory = &specs.LinuxMemory{Limit: &memory}
		if e.caps.Memory {
			swap := memory // memory and swap together: no swap on top
			r.Memory.Swap = &swap
		}
	}
	if e.caps.CPU {
		// Having less than asked for is bound enough.
		quota, period := min(l.CPUMillis, int64(e.cpus)*1000)*cpuPeriod/1000, uint64(cpuPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	if e.caps.PIDs {
		pids := l.PIDs + guestPIDs
		r.Pids = &specs.LinuxPids{Limit: &pids}
	}
	return r
}

// rlimits bound every process from its first instruction.
func rlimits(l backend.Limits) []specs.POSIXRlimit {
	files := uint64(max(l.OpenFiles, minFiles))
	size := uint64(maxFileBytes)
	if l.FileBytes > 0 {
		size = max(size, uint64(l.FileBytes)) // the guest sets the user's own, which may be smaller than its own files
	}
	return []specs.POSIXRlimit{
		{Type: "RLIMIT_CORE"},
		{Type: "RLIMIT_NOFILE", Soft: files, Hard: files},
		{Type: "RLIMIT_FSIZE", Soft: size, Hard: size},
	}
}

func inodes(bytes int64) int64 { return max(bytes/bytesPerInode, 16) }
