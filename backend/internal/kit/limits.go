package kit

import (
	"cmp"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
)

const (
	mib = 1 << 20
	// GuestMemory in bytes and GuestPIDs come on top of the user's limits, so that the guest's own needs take nothing of
	// them.
	GuestMemory = 10 * mib
	GuestPIDs   = 20
	// ImageVolumeBytes is the size of what is mounted where an image declares a volume.
	ImageVolumeBytes = 64 * mib

	minFiles     = 1024     // keeps the guest alive under a small limit; commands get the user's own through the guest
	maxFileBytes = 16 << 30 // of every file where the user asked for no bound
	rootBytes    = 4 << 30  // written to the root where the user asked for no bound of the workspace
	minRoot      = 4 * mib  // the runtime's own directories in the root count too
	// bytesPerInode bounds the files in a tmpfs: each costs kernel memory beyond its pages.
	bytesPerInode = 4096
)

// SandboxLimits returns the limits of a sandbox: the requested limits, then the driver's options, then the defaults.
func SandboxLimits(asked, options backend.Limits) backend.Limits {
	return asked.Merge(options).Merge(backend.DefaultLimits()).Fit(asked)
}

// Inodes returns how many files a file system of so many bytes may hold.
func Inodes(bytes int64) int64 { return max(bytes/bytesPerInode, 16) }

// MaskedPaths are the parts of the kernel's file systems that no sandbox may read, on a machine with so many
// processors: those of the newest Docker Engine. What is not there is no error.
func MaskedPaths(cpus int) []string {
	paths := []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	for cpu := range cpus {
		paths = append(paths, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", cpu))
	}
	return paths
}

// ReadonlyPaths are the parts of the kernel's file systems that a container must not write to: Docker's, and what the
// control groups of version 1 are mounted below, a tmpfs without a size that would be the sandbox's root's.
func ReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/sys/fs/cgroup"}
}

// MaxTerminals is how many pseudo-terminals a sandbox may have. The machine has kernel.pty.max, by default 4096.
const MaxTerminals = 64

// OpenFiles returns how many files every process of a sandbox may have open; the guest sets the user's own limit for
// commands, which may be smaller than the guest's needs.
func OpenFiles(l backend.Limits) int64 { return max(l.OpenFiles, minFiles) }

// FileBytes returns the largest size of a file that every process of a sandbox may make; the guest sets the user's own
// limit for commands, which may be smaller than its own files. No single file can pass the limit of what the guest
// watches by much; a workspace that is a file system of its own is full before.
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

// rootBytesOf returns how much may be written outside of the workspace, and of what has a size of its own, in a
// container: nothing where the root is read-only, else as much as was asked for the workspace, and 4 GiB where nothing
// was.
func rootBytesOf(root backend.RootMode, asked, options backend.Limits) int64 {
	if root != backend.RootWritable {
		return 0
	}
	return max(minRoot, cmp.Or(asked.Merge(options).WorkspaceBytes, rootBytes))
}

// GuestArgs returns the guest's arguments: when it ends without a host, the limits of the workspace, which the guest
// enforces itself if they are watched, and the limit of the root.
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

// GuestEnv returns the environment of the guest itself, not of commands. What steers its runtime is set, because an
// engine may add the variables of the image.
func GuestEnv() []string {
	return []string{"GODEBUG=", "GOGC=", "GOMAXPROCS=", "GOMEMLIMIT=", "GOTRACEBACK="}
}

// Enforceable refuses limits that the user asked for and an engine would drop, and engines that cannot limit memory and
// processes at all: no sandbox runs without. memory reports whether memory can be limited, swap perhaps not.
func (p *Plan) Enforceable(driver string, memory bool, caps backend.Capabilities) error {
	switch asked := p.Asked; {
	case !memory || !caps.PIDs:
		return fmt.Errorf("%s: cannot limit memory and processes on this host (rootless on cgroup version 1?): %w", driver, backend.ErrUnsupported)
	case asked.MemoryBytes > 0 && !caps.Memory:
		return fmt.Errorf("%s: cannot limit memory and swap on this host: %w", driver, backend.ErrUnsupported)
	case asked.CPUMillis > 0 && !caps.CPU:
		return fmt.Errorf("%s: cannot limit CPU time on this host: %w", driver, backend.ErrUnsupported)
	}
	return nil
}
