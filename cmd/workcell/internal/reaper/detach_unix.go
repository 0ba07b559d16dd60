//go:build !windows

package reaper

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// Supported reports that a process can outlive this one here.
const Supported = true

// niceness of a reaper: its start is beside the making of a sandbox, which somebody waits for.
const niceness = 10

// makeNice lowers the priority of a process.
func makeNice(pid int) {
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, pid, niceness) // it does its work all the same
}

// detach makes a command be a session of its own, without terminal, which gets none of this process's descriptors.
// Those that this process was started with would be passed on otherwise.
func detach(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	dir, err := os.Open("/dev/fd")
	if err != nil {
		return err
	}
	defer dir.Close()                  // nothing was written to it
	names, err := dir.Readdirnames(-1) // macOS cannot describe each of them
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return err
}
