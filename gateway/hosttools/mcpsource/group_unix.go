//go:build unix

package mcpsource

import (
	"os/exec"
	"syscall"
)

// ownGroup makes a command start in a new process group, which terminal signals do not reach.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills the process group of a started command, if it still exists.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the group may no longer exist
}
