// Package hosttools lets code in a sandbox call tools on the host.
//
// A [Source] provides the tools of one server: the program's own tools, or the tools of an MCP server (package
// mcpsource). A [Registry] holds the sources and the operator's policy. [Registry.Set] fixes the tools of a run. It
// excludes tools whose schemas are too large or too deep, and the tools do not change until the run ends. [Set.Access]
// returns one command's access to the set. [Access.Serve] speaks MCP on a connection of that command.
//
// The checks of a call have a fixed order, and the first failed check determines the error: grant, size and form of the
// arguments, schema, policy and conditions, quotas, rate and slots, approval. A call waits at most 5 s for the rate and
// a slot. Then the tool runs with a time limit. A result may have up to 64 MiB, including files, and a large result
// becomes a file in the sandbox.
//
// A run may have up to 1000 tools, and a server up to 200. Arguments may have up to 64 levels and 50,000 values.
//
// Each call has a span "execute_tool NAME". The parent is the span in the request if this span belongs to the command's
// trace. Otherwise, the parent is the command's span. The span contains no arguments and no results.
package hosttools

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

type (
	// Definition describes a tool: Name, Title, Description, the JSON Schemas Input and Output, and the properties
	// ReadOnly, Destructive, Idempotent, and Network.
	Definition = toolspec.Definition
	// Error is a failed call: Code, Message, Remediation for the caller, Retryable, and the Rule of a refusal.
	Error = toolspec.Error
	// Rules select the tools of a run: up to 500 rules in Allow, Limits, and Index ("auto", "full", or "search"; if empty,
	// "auto").
	Rules = rules.Tools
	// Rule allows the tools matching Tool, for example "orders.*", with the CEL conditions When and Ask, and MaxCalls,
	// the maximum number of calls of each tool in a run (1 to 1,000,000). If zero, only Limits apply.
	Rule = rules.Tool
	// Limits bound the calls of a run. Zero means the default. The defaults are 1000 Calls of the run, 16 Concurrent
	// calls, 50 calls PerSecond, 60 Seconds for one call, 1024 ArgKB (KiB of arguments), and 64 ResultKB (KiB of an
	// answer; larger results become files). The maximums are 1,000,000, 256, 10,000, 3600, 1024, and 1024.
	Limits = rules.ToolLimits
	// Problems are mistakes in rules. Each has a Field, a Message, and a Hint.
	Problems = hint.Problems
)

// Tool is a host tool.
type Tool struct {
	Definition        // Name is the name on the server; schemas are JSON Schema objects; Output may be nil
	Server     string // set by the registry
	Handle     Handler
}

// Handler runs a tool. It must return when ctx is done. If it returns an *[Error], the caller gets this error. For
// other errors, the caller learns only that the call failed.
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
	// Close stops everything started by the source. Later calls of the tools may fail.
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
// clients become underscores.
func (t Tool) MCPName() string { return safeName(t.Server + "_" + t.Name) }
