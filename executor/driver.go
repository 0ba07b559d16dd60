package executor

import (
	"encoding/json"
	"io"

	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/sandbox"
)

// Driver knows one CLI. Its methods must be safe for concurrent use.
type Driver interface {
	// Name returns the name of the CLI.
	Name() string
	// Prepare returns how the CLI is called for a task. It must have no effect and depend on its arguments alone. What the
	// CLI cannot do is backend.ErrUnsupported, what makes no sense backend.ErrInvalid.
	Prepare(Task, Inside) (Invocation, error)
	// Parser returns a parser for the output of one call.
	Parser() Parser
	// Outcome returns how a call ended that nobody ended from outside.
	Outcome(Seen, sandbox.ExecStatus) Outcome
}

// Task is what a CLI is to do.
type Task struct {
	System, Prompt string
	Model          string          // as the CLI takes it, for OpenCode with its provider: "anthropic/claude-sonnet-4-5"
	Schema         json.RawMessage // of the answer; nil is free text
	MaxTurns       int             // of the model; zero is unlimited
	ResumeID       string          // the session to go on with; empty begins one
	NewID          string          // a UUID for a new session, for CLIs that take one
	Web            bool            // permits search and fetch on the provider's side
	Args           map[string]string
}

// Inside is what a CLI finds in its sandbox.
type Inside struct {
	// Settings is a directory for the CLI's settings and sessions. Nothing that ran before it left files there.
	Settings string
	Workdir  string
	Models   map[model.Dialect]Endpoint
	MCP      []string // the command of the one MCP server, Server; nil is none
	Root     bool     // commands run as root
}

// Server is the name of the MCP server that CLIs are given, which has the tools of the host.
const Server = "workcell"

// Endpoint is where a model answers inside the sandbox, and the key that it is asked with, which code in the sandbox
// can read. The URL is what the provider's own SDK takes: OpenAI's ends with "/v1", the others have no version.
type Endpoint struct{ BaseURL, Key string }

// Invocation is a call of a CLI.
type Invocation struct {
	Argv  []string
	Env   map[string]string
	Stdin []byte
	Files []File // written before the call
	// Safe are the flags of Argv that keep a repository's settings out. Other command lines of the CLI need them as well.
	Safe []string
	// Home is the home directory in which the CLI looks for skills, if it is not the home directory of commands.
	Home string
	// Meta, if not nil, is the _meta of a session that the CLI opens by the Agent Client Protocol.
	Meta map[string]any
	// Keep are the files of Inside.Settings that the CLI needs to resume a session, relative to it. All others are removed
	// before a call.
	Keep []string
	// Late: the first event comes with the first answer of the model, so that only Options.Stall bounds the wait for it.
	Late bool
	// Talk returns the parser of a CLI that is answered while it works: what the parser writes goes to the CLI's standard
	// input, which is closed behind KindEnd. The CLI has to leave then. Nil: Driver.Parser reads it, and Stdin is all that
	// it is told.
	Talk func(stdin io.Writer) Parser
	// Text: what it prints is its answer, so that empty lines count.
	Text bool
	// CountTurns: each KindUsage is a turn of the model, and Run ends the CLI after Task.MaxTurns of them, as it does not
	// itself.
	CountTurns bool
}

// File is a file of an Invocation, with an absolute path.
type File struct {
	Path string
	Data []byte
}

// Parser reads the lines of a CLI's output. No CLI promises what its lines are: Line must return KindRaw for what it
// does not know, and must not fail.
type Parser interface {
	Line([]byte) []Event
}

// Kind is what an Event tells.
type Kind string

// The kinds of events.
const (
	KindSession   Kind = "session"    // Session is known
	KindText      Kind = "text"       // Text of an answer
	KindThinking  Kind = "thinking"   // Text of the model's reasoning
	KindToolStart Kind = "tool_start" // Tool begins
	KindToolEnd   Kind = "tool_end"   // Tool ended
	KindUsage     Kind = "usage"      // Usage was told
	KindNotice    Kind = "notice"     // Text for people
	KindEnd       Kind = "end"        // End is how the CLI says it ended
	KindRaw       Kind = "raw"        // Raw is something else
)

// Event is what a CLI tells while it works.
type Event struct {
	Kind    Kind            `json:"kind"`
	Text    string          `json:"text,omitempty"`
	Delta   bool            `json:"delta,omitempty"` // Text goes on where that of the last event of this kind ended
	Tool    *ToolUse        `json:"tool,omitempty"`
	Session string          `json:"session,omitempty"`
	Usage   *Usage          `json:"usage,omitempty"`
	End     *End            `json:"end,omitempty"`
	Raw     json.RawMessage `json:"raw,omitempty"`
}

// ToolUse is a call of a tool. At its end Name, Server and Input may be empty: they were told at its start.
type ToolUse struct {
	ID     string          `json:"id"`
	Name   string          `json:"name,omitempty"`
	Server string          `json:"server,omitempty"` // of MCP; empty for a tool of the CLI's own
	Input  json.RawMessage `json:"input,omitempty"`  // at most MaxToolText, else left out
	Output string          `json:"output,omitempty"` // cut at MaxToolText
	Failed bool            `json:"failed,omitempty"`
}

// MaxToolText bounds what an event holds of a tool's input and output.
const MaxToolText = 64 << 10

// Usage counts tokens as the CLI tells them, which is not what the provider bills: CLIs leave requests out.
type Usage struct {
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	CacheRead  int64 `json:"cache_read,omitempty"`
	CacheWrite int64 `json:"cache_write,omitempty"`
	// Whole: the counts are those of the session, earlier calls included; else they add to what was told before.
	Whole bool `json:"whole,omitempty"`
}

// End is how a CLI says it ended.
type End struct {
	Outcome Outcome         `json:"outcome"`
	Text    string          `json:"text,omitempty"`   // the answer, when it is told once more
	Data    json.RawMessage `json:"data,omitempty"`   // the answer by Task.Schema, when it is told apart
	Detail  string          `json:"detail,omitempty"` // what went wrong
	Turns   int             `json:"turns,omitempty"`
}

// Seen is what a CLI told until it ended.
type Seen struct {
	Events  int    // that the parser knew
	Session string // empty when none was told
	End     *End   // nil when the CLI did not say how it ended
	Stderr  string // the last 4 KiB, fit for messages
}

// WithSchema returns the prompt of a task for a CLI that takes no schema of the answer: it asks for one.
func WithSchema(prompt string, schema json.RawMessage) string {
	if schema == nil {
		return prompt
	}
	return prompt + "\n\nAnswer only with JSON that is valid for this schema, without a code block:\n" + string(schema)
}

// WithSystem returns the prompt of a task for a CLI that has no other place for a system prompt.
func WithSystem(system, prompt string) string {
	if system == "" {
		return prompt
	}
	return system + "\n\n" + prompt
}

// Environment returns the variables by which programs that no driver is written for find their model, as the SDKs of
// its provider read them, and the directories of their settings.
func Environment(t Task, in Inside) map[string]string {
	env := map[string]string{
		"XDG_DATA_HOME": in.Settings + "/.local/share", "XDG_CONFIG_HOME": in.Settings + "/.config",
		"XDG_STATE_HOME": in.Settings + "/.local/state", "XDG_CACHE_HOME": in.Settings + "/.cache", "WORKCELL_MODEL": t.Model,
	}
	for dialect, names := range map[model.Dialect][2]string{
		model.Anthropic:       {"ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"},
		model.OpenAIResponses: {"OPENAI_BASE_URL", "OPENAI_API_KEY"},
		model.OpenAIChat:      {"OPENAI_BASE_URL", "OPENAI_API_KEY"}, // the same address
		model.Gemini:          {"GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"},
	} {
		if at, ok := in.Models[dialect]; ok {
			env[names[0]], env[names[1]] = at.BaseURL, at.Key
		}
	}
	return env
}
