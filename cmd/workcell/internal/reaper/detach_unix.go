//go:build !windows

package reaper

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// Supported reports whether a process can outlive this process on this platform.
const Supported = true

// niceness is the niceness of a reaper. It is low priority, because it starts while the user waits for a sandbox.
const niceness = 10

// makeNice lowers the priority of a process.
func makeNice(pid int) {
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, pid, niceness) // without it, the reaper works too
}

// detach makes a command run in a new session without a terminal. The command inherits none of this process's
// descriptors, not even descriptors inherited by this process.
func detach(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	dir, err := os.Open("/dev/fd")
	if err != nil {
		return err
	}
	defer dir.Close()                  // opened for reading only
	names, err := dir.Readdirnames(-1) // macOS cannot return details about each descriptor
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return err
}
