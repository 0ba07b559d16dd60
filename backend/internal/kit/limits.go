package kit

import (
	"cmp"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
)

const (
	mib = 1 << 20
	// GuestMemory (in bytes) and GuestPIDs are added to the user's limits to keep the user's share free of the guest
	// agent's memory and processes.
	GuestMemory = 10 * mib
	GuestPIDs   = 20
	// ImageVolumeBytes is the size of the mount for a volume of an image.
	ImageVolumeBytes = 64 * mib

	minFiles     = 1024     // keeps the guest alive under a small limit; commands get the user's own through the guest
	maxFileBytes = 16 << 30 // maximum size of each file if the user set no limit
	rootBytes    = 4 << 30  // maximum size of writes to the root if the user set no workspace limit
	minRoot      = 4 * mib  // the runtime's own directories in the root count too
	// bytesPerInode bounds the files in a tmpfs: each costs kernel memory in addition to the pages.
	bytesPerInode = 4096
)

// Inodes returns the maximum number of files in a file system of this size.
func Inodes(bytes int64) int64 { return max(bytes/bytesPerInode, 16) }

// TmpfsOptions returns the mount options for a tmpfs of this size. It belongs to the user.
func TmpfsOptions(size int64, u User) string {
	return fmt.Sprintf("size=%d,nr_inodes=%d,mode=1777,uid=%d,gid=%d", size, Inodes(size), u.UID, u.GID)
}

// CPUQuota returns the CPU time per period, in microseconds, on a host with this number of processors. If the host has
// fewer processors than requested, no further limit is necessary. The period is the default of Docker and the kernel.
func CPUQuota(l backend.Limits, cpus int) (quota, period int64) {
	period = 100_000
	return min(l.CPUMillis, int64(cpus)*1000) * period / 1000, period
}

// MaskedPaths returns the unreadable paths of the kernel's file systems in a sandbox, on a host with this number of
// processors. The list is the list of the newest Docker Engine. Engines ignore missing paths.
func MaskedPaths(cpus int) []string {
	paths := []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	for cpu := range cpus {
		paths = append(paths, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", cpu))
	}
	return paths
}

// ReadonlyPaths returns the read-only paths of the kernel's file systems in a sandbox. The list is Docker's list plus
// sys. For containers, sys is the mount point of the version 1 control groups: a tmpfs without a size limit, which the
// sandbox's root user could fill.
func ReadonlyPaths(sys string) []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", sys}
}

// TerminalOptions are mount options for the pseudo-terminals of a sandbox. The limit of the host is kernel.pty.max, by
// default 4096.
const TerminalOptions = "newinstance,ptmxmode=0666,mode=0620,gid=5,max=64"

// OpenFiles returns the limit of open files for every process of a sandbox. The guest agent sets the user's limit for
// commands, because this limit may be too small for the guest agent.
func OpenFiles(l backend.Limits) int64 { return max(l.OpenFiles, minFiles) }

// FileBytes returns the maximum file size for every process of a sandbox. The guest agent sets the user's limit for
// commands, because this limit may be too small for the guest agent's own files. If the guest agent monitors the
// workspace, FileBytes also keeps a single file from exceeding the workspace limit by much. A workspace with a separate
// file system fills up earlier.
func FileBytes(l backend.Limits, workspace backend.Enforcement, root int64) int64 {
	size := max(maxFileBytes, l.FileBytes)
	switch {
	case l.WorkspaceBytes == 0:
	case workspace == backend.WorkspaceWatched:
		size = min(size, max(l.WorkspaceBytes, root))
	case root > 0:
		size = min(size, 2*l.WorkspaceBytes)
	}
	return size
}

// rootBytesOf returns the maximum size of writes to a container's root, outside of the workspace and of mounts with
// their own size limit. The result is zero for a read-only root. Otherwise it is the requested workspace size, or 4 GiB
// if no size is requested.
func rootBytesOf(root backend.RootMode, asked, options backend.Limits) int64 {
	if root != backend.RootWritable {
		return 0
	}
	return max(minRoot, cmp.Or(asked.Merge(options).WorkspaceBytes, rootBytes))
}

// GuestArgs returns the guest agent's arguments: the orphan timeout, the limits of a workspace monitored by the guest
// agent, and the limit of the root.
func (r Record) GuestArgs(root int64) []string {
	args := []string{}
	if r.OrphanTimeout > 0 {
		args = append(args, fmt.Sprintf("--orphan-timeout=%v", r.OrphanTimeout))
		args = append(args, fmt.Sprintf("--ephemeral=%t", r.Ephemeral))
	}
	if size := r.Limits.WorkspaceBytes; size > 0 {
		args = append(args, fmt.Sprintf("--workspace-bytes=%d", size), fmt.Sprintf("--workspace-files=%d", Inodes(size)),
			fmt.Sprintf("--workspace-watched=%t", r.Workspace == backend.WorkspaceWatched))
	}
	if root > 0 {
		args = append(args, fmt.Sprintf("--root-bytes=%d", root), fmt.Sprintf("--root-files=%d", Inodes(root)))
	}
	return args
}

// GuestEnv returns the environment of the guest agent. Commands do not get these variables. GuestEnv clears all
// variables with an effect on the Go runtime, because an engine may add variables of the image.
func GuestEnv() []string {
	return []string{"GODEBUG=", "GOGC=", "GOMAXPROCS=", "GOMEMLIMIT=", "GOTRACEBACK="}
}

// Enforceable returns an error if the engine would ignore a requested limit, or if it cannot limit memory and processes
// at all. No sandbox runs without these two limits. memory reports whether memory can be limited, even if swap cannot.
func (p *Plan) Enforceable(memory bool, caps backend.Capabilities) error {
	switch asked, driver := p.Asked, p.driver; {
	case !memory || !caps.PIDs:
		return fmt.Errorf("%s: cannot limit memory and processes on this host (rootless on cgroup version 1?): %w",
			driver, backend.ErrUnsupported)
	case asked.MemoryBytes > 0 && !caps.Memory:
		return fmt.Errorf("%s: cannot limit memory and swap on this host: %w", driver, backend.ErrUnsupported)
	case asked.CPUMillis > 0 && !caps.CPU:
		return fmt.Errorf("%s: cannot limit CPU time on this host: %w", driver, backend.ErrUnsupported)
	}
	return nil
}
