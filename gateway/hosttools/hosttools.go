package hosttools

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// Types of host tools and of all other tools.
type (
	Definition = toolspec.Definition
	Error      = toolspec.Error
	Rules      = rules.Tools
	Rule       = rules.Tool
	Limits     = rules.ToolLimits
	Problems   = hint.Problems
)

// Tool is a host tool.
type Tool struct {
	Definition        // Name is the name on the server; schemas are JSON Schema objects; Output may be nil
	Server     string // set by the registry
	Handle     Handler
}

// Handler runs a tool. It must return when ctx is done. If it returns an *[Error], the caller gets this error. For
// other errors, the caller learns only about a failure.
type Handler func(ctx context.Context, c Call) (Result, error)

// Call is one call of a tool. Args is an object without duplicate keys. It matches the tool's schema.
type Call struct {
	Args   json.RawMessage
	Caller Caller
}

// Caller identifies the caller of a tool.
type Caller struct {
	Run, Workflow, Step, Agent string
	SandboxID, ExecID          string
	Depth                      int // 1 for code of an agent; higher if a host tool ran the agent
}

// Result is the result of a tool. Data must be JSON. If Data is set, Text is ignored.
type Result struct {
	Data   json.RawMessage
	Text   string
	Files  []File
	Failed bool // the call failed, and Text is the reason
}

// File is a file in a tool's result.
type File struct {
	Name  string // base name; may be empty
	MIME  string
	Bytes []byte
}

// Source provides the tools of one server. All methods must be safe for concurrent use.
type Source interface {
	// Name returns the server's name in rules.
	Name() string
	// Tools returns the current tools.
	Tools(ctx context.Context) ([]Tool, error)
	// Close stops everything started by the source. Later calls of the tools fail.
	Close() error
}

// AppServer is the server name of a program's own Genkit tools.
const AppServer = "app"

// Static returns a source with fixed tools and the name server.
func Static(server string, tools ...Tool) Source { return static{server, slices.Clone(tools)} }

type static struct {
	name  string
	tools []Tool
}

func (s static) Name() string                          { return s.name }
func (s static) Tools(context.Context) ([]Tool, error) { return s.tools, nil }
func (s static) Close() error                          { return nil }

// FullName returns the tool's name in rules: "server.tool".
func (t Tool) FullName() string { return t.Server + "." + t.Name }

// MCPName returns the tool's name for clients in sandboxes: server, underscore, tool. Characters rejected by MCP
// clients are replaced.
func (t Tool) MCPName() string {
	return fileName(t.Server + "_" + t.Name)
}

type callerKey struct{} // holds the Caller of the current call
