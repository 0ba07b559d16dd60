package mcpsource

import "os/exec"

// ownGroup does nothing: Windows has no process groups that can be ended as one.
func ownGroup(*exec.Cmd) {}

// killGroup ends the command alone.
func killGroup(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended
}
