package wire

import "path"

// PrivateDir is the directory of a workspace that belongs to Workcell: the home directory of commands, output that does
// not fit in an answer, declarations and results of host tools, and settings of coding agents. Lists, outputs, and
// patches do not contain it.
const PrivateDir = ".workcell"

// Home returns the home directory of the commands in a workspace.
func Home(workdir string) string { return path.Join(workdir, PrivateDir, "home") }

// UserName returns the name of a sandbox's user, in /etc/passwd and in the environment of commands.
func UserName(uid int) string {
	if uid == 0 {
		return "root"
	}
	return "user"
}
