package mcpsource

import "os/exec"

// ownGroup does nothing, because Windows cannot kill a process group at once.
func ownGroup(*exec.Cmd) {}

// killGroup kills only the command itself.
func killGroup(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended
}
