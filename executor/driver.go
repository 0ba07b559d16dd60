package executor

import (
	"encoding/json"
	"io"

	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/sandbox"
)

// Driver supports one CLI. All methods must be safe for concurrent use.
type Driver interface {
	Name() string
	// Prepare returns the invocation of the CLI for a task. It must have no side effects and depend only on the
	// arguments. It returns backend.ErrUnsupported for missing features of the CLI, and backend.ErrInvalid or
	// ErrTooLarge for invalid tasks.
	Prepare(Task, Inside) (Invocation, error)
	// Parser returns a parser for the output of one invocation.
	Parser() Parser
	// Outcome returns the outcome of an invocation, unless it was stopped from outside.
	Outcome(Seen, sandbox.ExecStatus) Outcome
}

// Task is a task for a CLI.
type Task struct {
	System, Prompt string
	Model          string          // in the CLI's format; OpenCode includes the provider: "anthropic/claude-sonnet-4-5"
	Schema         json.RawMessage // JSON Schema of the answer; nil for free text
	MaxTurns       int             // maximum turns of the model; zero means no limit
	ResumeID       string          // session to resume; if empty, a new session starts
	NewID          string          // UUID for a new session, if the CLI accepts one
	Web            bool            // allows search and fetch by the provider
	Args           map[string]string
}

// Inside describes the sandbox for a CLI.
type Inside struct {
	// Settings is a directory for the CLI's settings and sessions. Except for a resumed session, it contains no files from
	// earlier commands.
	Settings string
	Workdir  string
	Models   map[model.Dialect]Endpoint
	MCP      []string // the command of the only MCP server, Server; nil without a server
	Root     bool     // commands run as root
}

// Server is the name of the MCP server with the host tools.
const Server = "workcell"

// Endpoint is the address of a model in the sandbox, and its key, which code in the sandbox can read. BaseURL has the
// format of the provider's SDK: OpenAI's URL ends with "/v1", and the others have no version.
type Endpoint struct{ BaseURL, Key string }

// Invocation describes how to run a CLI.
type Invocation struct {
	Argv  []string
	Env   map[string]string
	Stdin []byte
	Files []File // written before the CLI starts
	// Safe are the flags in Argv that make the CLI ignore a repository's settings. Its other command lines need them too.
	Safe []string
	// Home is the home directory in which the CLI looks for skills, if it is not the home directory of commands.
	Home string
	// Meta, if not nil, is the _meta of an Agent Client Protocol session.
	Meta map[string]any
	// Keep lists the files needed to resume a session, relative to Inside.Settings. All others are removed before a call.
	Keep []string
	// Late means the first event arrives with the model's first answer. In this case, only Options.Stall limits the
	// wait for it.
	Late bool
	// Talk returns the parser for a CLI with a two-way protocol. The parser writes to the CLI's standard input, which
	// is closed after KindEnd. The CLI must then exit. If Talk is nil, Driver.Parser parses the output, and Stdin is
	// the whole input.
	Talk func(stdin io.Writer) Parser
	// Text means the CLI's output is the answer, so empty lines are kept.
	Text bool
	// CountTurns means each KindUsage is a turn of the model. Run stops the CLI after Task.MaxTurns turns, because the
	// CLI itself does not.
	CountTurns bool
}

// File is a file to write before an Invocation. The path is absolute.
type File struct {
	Path string
	Data []byte
}

// Parser parses the output lines of a CLI. CLIs do not guarantee their format. Therefore, Line must not fail, and must
// return KindRaw for unknown lines.
type Parser interface {
	Line([]byte) []Event
}

// Kind is the type of an Event.
type Kind string

// Event types.
const (
	KindSession   Kind = "session"    // Session is set
	KindText      Kind = "text"       // Text is part of an answer
	KindThinking  Kind = "thinking"   // Text is part of the model's reasoning
	KindToolStart Kind = "tool_start" // start of Tool
	KindToolEnd   Kind = "tool_end"   // end of Tool
	KindUsage     Kind = "usage"      // Usage is set
	KindNotice    Kind = "notice"     // Text is a message for people
	KindEnd       Kind = "end"        // End is the result reported by the CLI
	KindRaw       Kind = "raw"        // Raw is unknown output
)

// Event is a progress event of a CLI.
type Event struct {
	Kind    Kind            `json:"kind"`
	Text    string          `json:"text,omitempty"`
	Delta   bool            `json:"delta,omitempty"` // Text continues the latest event of this kind
	Tool    *ToolUse        `json:"tool,omitempty"`
	Session string          `json:"session,omitempty"`
	Usage   *Usage          `json:"usage,omitempty"`
	End     *End            `json:"end,omitempty"`
	Raw     json.RawMessage `json:"raw,omitempty"`
}

// ToolUse is a tool call. At the end, Name, Server, and Input may be empty, because the start event contains these
// fields.
type ToolUse struct {
	ID     string          `json:"id"`
	Name   string          `json:"name,omitempty"`
	Server string          `json:"server,omitempty"` // MCP server; empty for the CLI's built-in tools
	Input  json.RawMessage `json:"input,omitempty"`  // omitted if longer than MaxToolText
	Output string          `json:"output,omitempty"` // truncated to MaxToolText
	Failed bool            `json:"failed,omitempty"`
}

// MaxToolText is the maximum size of a tool's input and output in an event, in bytes.
const MaxToolText = 64 << 10

// Usage has token counts reported by the CLI. They differ from the provider's bill, because CLIs omit some requests.
type Usage struct {
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	CacheRead  int64 `json:"cache_read,omitempty"`
	CacheWrite int64 `json:"cache_write,omitempty"`
	// Whole means the counts are for the whole session, including earlier invocations. Otherwise, they are added to the
	// previous counts.
	Whole bool `json:"whole,omitempty"`
}

// End is the result reported by a CLI.
type End struct {
	Outcome Outcome         `json:"outcome"`
	Text    string          `json:"text,omitempty"`   // answer, if the CLI repeats it at the end
	Data    json.RawMessage `json:"data,omitempty"`   // answer for Task.Schema, if the CLI reports it separately
	Detail  string          `json:"detail,omitempty"` // error message
	Turns   int             `json:"turns,omitempty"`
}

// Seen summarizes the output of a CLI after it ended.
type Seen struct {
	Events  int    // number of events known to the parser
	Session string // empty if not reported
	End     *End   // nil if the CLI reported no result
	Stderr  string // last 4 KiB, safe for messages
}

// WithSchema returns the prompt for a CLI without support for answer schemas. It adds an instruction to follow the
// schema.
func WithSchema(prompt string, schema json.RawMessage) string {
	if schema == nil {
		return prompt
	}
	return prompt + "\n\nAnswer only with JSON that is valid for this schema, without a code block:\n" + string(schema)
}

// WithSystem returns the prompt for a CLI without support for system prompts. It puts the system prompt before the
// prompt.
func WithSystem(system, prompt string) string {
	if system == "" {
		return prompt
	}
	return system + "\n\n" + prompt
}

// Environment returns variables for programs without a driver: the directories of their settings, and the model, as
// read by the SDKs of the provider.
func Environment(t Task, in Inside) map[string]string {
	env := map[string]string{
		"XDG_DATA_HOME": in.Settings + "/.local/share", "XDG_CONFIG_HOME": in.Settings + "/.config",
		"XDG_STATE_HOME": in.Settings + "/.local/state", "XDG_CACHE_HOME": in.Settings + "/.cache", "WORKCELL_MODEL": t.Model,
	}
	for dialect, names := range map[model.Dialect][2]string{
		model.Anthropic:       {"ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"},
		model.OpenAIResponses: {"OPENAI_BASE_URL", "OPENAI_API_KEY"},
		model.OpenAIChat:      {"OPENAI_BASE_URL", "OPENAI_API_KEY"}, // same address
		model.Gemini:          {"GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"},
	} {
		if at, ok := in.Models[dialect]; ok {
			env[names[0]], env[names[1]] = at.BaseURL, at.Key
		}
	}
	return env
}
