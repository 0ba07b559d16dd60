// Package lib holds what code inside a sandbox calls the host's tools with: a client for Python and one for Node. They
// lie beside the guest, the same for all sandboxes of a version, and speak MCP on the socket that WORKCELL_TOOLS names.
package lib

import (
	"embed"
	"io/fs"
)

//go:embed python/workcell/__init__.py node/workcell/*
var files embed.FS

// Files returns the clients, below "python" and "node".
func Files() fs.FS { return files }
