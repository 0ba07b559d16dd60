package wire

import "path"

// PrivateDir is Workcell's directory in a workspace. It contains the home directory of commands, output too large for a
// response, declarations and results of host tools, and settings of coding agents. Listings, outputs, and patches omit
// this directory.
const PrivateDir = ".workcell"

// Home returns the home directory of commands in a workspace.
func Home(workdir string) string { return path.Join(workdir, PrivateDir, "home") }

// ExecVariable is the environment variable of a command's processes with the command's ID.
const ExecVariable = "WORKCELL_EXEC"

// UserName returns the name of a sandbox's user, in /etc/passwd and in the environment of commands.
func UserName(uid int) string {
	if uid == 0 {
		return "root"
	}
	return "user"
}
