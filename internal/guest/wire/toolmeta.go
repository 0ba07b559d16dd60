package wire

// Keys of _meta in the MCP messages between code in a sandbox and the host tools. The clients in internal/guest/lib use
// the same keys.
const (
	// MetaSave, in a call, is the path in the workspace where the result must be saved.
	MetaSave = "workcell/save"
	// MetaFiles, in a response, lists the files returned with the result.
	MetaFiles = "workcell/files"
	// MetaIndex, in a listed tool, is the tool's line in the index: "server.tool(argument, optional?) - Title."
	MetaIndex = "workcell/index"
)
