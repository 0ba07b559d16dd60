package wire

// Keys of _meta in the MCP messages between code inside a sandbox and the host's tools. The clients of
// internal/guest/lib write and read the same.
const (
	// MetaSave, of a call, is the path below the workspace where the result is to stay.
	MetaSave = "workcell/save"
	// MetaFiles, of an answer, lists the files that came beside the result.
	MetaFiles = "workcell/files"
	// MetaIndex, of a listed tool, is its line of the index: "server.tool(argument, optional?) - Title."
	MetaIndex = "workcell/index"
)
