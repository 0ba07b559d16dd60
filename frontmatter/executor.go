package frontmatter

import (
	"strings"

	"github.com/workcell-dev/workcell/internal/rules"
)

// Executor is the value of `executor:`: the coding agent, a program in the sandbox that does the agent's work.
type Executor struct {
	Command        string            `json:"command" yamlnode:"short" jsonschema:"enum=claude,enum=codex,enum=opencode,enum=gemini,enum=acp,enum=custom" jsonschema_description:"the coding agent's program; acp: a program that supports the Agent Client Protocol, custom: any program, both set in argv"`
	Argv           []string          `json:"argv,omitzero" jsonschema_description:"acp and custom: the command line, with the placeholders {model}, {workdir}, {home}, and for custom {prompt}, {system}, {schema}, {max_turns}, {resume}"`
	Events         string            `json:"events,omitempty" jsonschema:"enum=text,enum=json,enum=claude,enum=codex,enum=opencode,enum=gemini" jsonschema_description:"custom: output format of the program: its answer, events as JSON lines, or the format of that CLI; default: text"`
	MaxTurns       int64             `json:"max_turns,omitempty" jsonschema_description:"turns of its model; default: unlimited"`
	Budget         ExecutorBudget    `json:"budget,omitzero" jsonschema_description:"limits of its model requests"`
	TimeoutSeconds int64             `json:"timeout_seconds,omitempty" jsonschema_description:"time limit of the whole task; default: 1800"`
	StallSeconds   int64             `json:"stall_seconds,omitempty" jsonschema_description:"time limit without an event; default: 300"`
	Resume         ExecutorResume    `json:"resume,omitempty" jsonschema:"enum=never,enum=step,enum=session" jsonschema_description:"whether it continues the conversation of an earlier attempt at the step, or of any run in the sandbox"`
	Skills         []string          `json:"skills,omitzero" jsonschema_description:"directories of Agent Skills, relative to the file; default: skills/*, if any exist"`
	Web            bool              `json:"web,omitempty" jsonschema_description:"allows search and fetch by the provider"`
	Before         []string          `json:"before,omitzero" jsonschema_description:"shell lines that run in the sandbox first"`
	After          []string          `json:"after,omitzero" jsonschema_description:"shell lines that run in the sandbox at the end, even after a failure"`
	Args           map[string]string `json:"args,omitzero" jsonschema_description:"settings that the program supports"`
}

// ExecutorBudget limits the model requests of a coding agent. Zero means no limit.
type ExecutorBudget struct {
	USD          float64 `json:"usd,omitempty" jsonschema_description:"US dollars"`
	OutputTokens int64   `json:"output_tokens,omitempty" jsonschema_description:"tokens that the model writes"`
}

// ExecutorResume controls when a coding agent continues an earlier conversation. The zero value means ResumeStep.
type ExecutorResume string

// When to continue a conversation.
const (
	ResumeNever   ExecutorResume = "never"
	ResumeStep    ExecutorResume = "step"    // in later attempts of the same step of a workflow run
	ResumeSession ExecutorResume = "session" // in every run of the agent in the sandbox
)

// Commands whose program is specified by argv.
const (
	commandACP    = "acp"
	commandCustom = "custom"
)

// ExecutorAgents returns the names of the supported coding agents, which have their own images.
func ExecutorAgents() []string { return []string{"claude", "codex", "gemini", "opencode"} }

// ExecutorCommands returns the valid values of executor.command.
func ExecutorCommands() []string { return append(ExecutorAgents(), commandACP, commandCustom) }

// Limits of an executor.
const (
	maxExecutorTurns  = 10_000
	maxExecutorTokens = 1_000_000_000
	maxExecutorUSD    = 100_000
	maxExecutorLines  = 100 // maximum number of hooks and of skills
)

func (c *checker) executor(s Sandbox) {
	x := s.Executor
	switch {
	case x == nil && s.Mode == ModeExecutor:
		c.Add("mode", "add one, for example executor: {command: claude}", "mode executor requires an executor")
		return
	case x == nil:
		return
	case s.Mode != ModeExecutor:
		c.Add("executor", "add mode: executor, or remove it", "executor requires mode executor")
	}
	known := ExecutorCommands()
	if x.Command == "" {
		c.Add("executor.command", "use one of "+strings.Join(known, ", "), "executor has no command")
	}
	c.oneOf("executor.command", x.Command, known...)
	c.commandLine(x)
	c.oneOf("executor.resume", string(x.Resume), string(ResumeNever), string(ResumeStep), string(ResumeSession))
	within(c, "executor.max_turns", x.MaxTurns, 1, maxExecutorTurns)
	within(c, "executor.budget.output_tokens", x.Budget.OutputTokens, 1, maxExecutorTokens)
	within(c, "executor.timeout_seconds", x.TimeoutSeconds, 1, maxExecSeconds)
	within(c, "executor.stall_seconds", x.StallSeconds, 1, maxExecSeconds)
	if usd := x.Budget.USD; !(usd >= 0 && usd <= maxExecutorUSD) {
		c.Add("executor.budget.usd", "", "executor.budget.usd must be above 0 and at most %d, not %v", maxExecutorUSD, usd)
	}
	for name, list := range map[string][]string{"before": x.Before, "after": x.After, "skills": x.Skills} {
		if len(list) > maxExecutorLines {
			c.Add("executor."+name, "", "executor.%s has %d entries, the limit is %d", name, len(list), maxExecutorLines)
		}
	}
}

// commandLine validates argv, which acp and custom require.
func (c *checker) commandLine(x *Executor) {
	generic := x.Command == commandACP || x.Command == commandCustom
	switch {
	case !generic && x.Argv != nil:
		c.Add("executor.argv", "remove it, or write command: custom", "executor.argv requires command acp or custom")
	case generic && len(x.Argv) == 0:
		c.Add("executor.command", "add argv: [PROGRAM, ARGUMENT, …]", "command %s requires argv", x.Command)
	case generic:
		if err := rules.CheckArgs(x.Argv); err != nil {
			c.Add("executor.argv", "", "executor.argv: %v", err)
		}
	}
	if x.Events != "" && x.Command != commandCustom {
		c.Add("executor.events", "remove it", "executor.events requires command custom")
	}
	c.oneOf("executor.events", x.Events, append([]string{"text", "json"}, ExecutorAgents()...)...)
}
