package hosttools

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// What tools of the host share with all others.
type (
	Definition = toolspec.Definition
	Error      = toolspec.Error
	Rules      = rules.Tools
	Rule       = rules.Tool
	Limits     = rules.ToolLimits
	Problems   = hint.Problems
)

// Tool is a tool of the host.
type Tool struct {
	Definition        // Name is that on its server; schemas are objects of JSON Schema, Output may be nil
	Server     string // set by the source
	Handle     Handler
}

// Handler runs a tool. It must end when ctx does. An *[Error] that it returns is the answer; of another error the
// caller learns only that the tool failed.
type Handler func(ctx context.Context, c Call) (Result, error)

// Call is one call of a tool. Args is an object that fits the tool's schema, without duplicate keys.
type Call struct {
	Args   json.RawMessage
	Caller Caller
}

// Caller says on whose behalf a tool is called.
type Caller struct {
	Run, Workflow, Step, Agent string
	SandboxID, ExecID          string
	Depth                      int // 1 for code that an agent runs; more when a tool of the host ran the agent
}

// Result is what a tool returns. Data, which is JSON, wins over Text.
type Result struct {
	Data   json.RawMessage
	Text   string
	Files  []File
	Failed bool // the call failed; Text says why
}

// File is a file that a tool returns.
type File struct {
	Name  string // a base name; may be empty
	MIME  string
	Bytes []byte
}

// Source has the tools of one server. All methods may be called concurrently.
type Source interface {
	// Name is the server's name in rules.
	Name() string
	// Tools returns the tools as they are now.
	Tools(ctx context.Context) ([]Tool, error)
	// Close ends what the source started. Later calls of its tools fail.
	Close() error
}

// AppServer is the name of the server of a program's own Genkit tools.
const AppServer = "app"

// Static returns a source of fixed tools, which it names server.
func Static(server string, tools ...Tool) Source {
	tools = slices.Clone(tools)
	for i := range tools {
		tools[i].Server = server
	}
	return static{server, tools}
}

type static struct {
	name  string
	tools []Tool
}

func (s static) Name() string                          { return s.name }
func (s static) Tools(context.Context) ([]Tool, error) { return s.tools, nil }
func (s static) Close() error                          { return nil }

// FullName returns the name that rules use: "server.tool".
func (t Tool) FullName() string { return t.Server + "." + t.Name }

// MCPName returns the name that clients inside use: server, underscore, tool, with characters that MCP clients refuse
// replaced.
func (t Tool) MCPName() string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, t.Server+"_"+t.Name)
}

type callerKey struct{} // holds the Caller of the call that a context belongs to

// CallerFromContext returns the caller of the tool that is running under ctx.
func CallerFromContext(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}
