// Package lib contains the clients with which code in a sandbox calls host tools, for Python and Node.js. They are
// installed next to the guest agent, are the same for all sandboxes of a version, and use MCP on the socket in
// WORKCELL_TOOLS.
package lib

import (
	"embed"
	"io/fs"
)

//go:embed python/workcell/__init__.py node/workcell/* gitconfig
var files embed.FS

// GitConfig is Git's system configuration. Git refuses repositories of other users, and the owner of a workspace can be
// the volume's or an earlier sandbox's user. It is a file because Git before 2.38 ignores safe.directory in variables.
const GitConfig = "gitconfig"

// Files returns the clients, below "python" and "node", and GitConfig.
func Files() fs.FS { return files }
