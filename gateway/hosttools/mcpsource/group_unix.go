//go:build unix

package mcpsource

import (
	"os/exec"
	"syscall"
)

// ownGroup has a command start in a process group of its own, which no signal of the terminal reaches.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends the group of a command that was started, if it is still there.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // there may be none any more
}
