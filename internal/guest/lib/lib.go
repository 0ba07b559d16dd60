// Package lib holds what code inside a sandbox calls the host's tools with: a client for Python and one for Node. They
// lie beside the guest, the same for all sandboxes of a version, and speak MCP on the socket that WORKCELL_TOOLS names.
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
