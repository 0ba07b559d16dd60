package mcpsource

import "os/exec"

// ownGroup does nothing, because Windows has no process groups that can be killed at once.
func ownGroup(*exec.Cmd) {}

// killGroup kills only the command itself.
func killGroup(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended
}
