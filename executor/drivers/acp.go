package drivers

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
)

// ACP calls a coding agent with the Agent Client Protocol (https://agentclientprotocol.com) on its standard input and
// output. It negotiates the version, which must be 1. Task.Args are: permissions, allow or deny.
//
// The client offers no access to files or terminals, because the agent uses the sandbox's files and terminals. The
// agent gets every requested permission, because the sandbox limits it. Only access to the web depends on the task.
type ACP struct {
	// Argv is the command line. It may contain the placeholders {model}, {workdir}, and {home}.
	Argv []string
	// Settings is the driver of the CLI behind the protocol, or nil. The driver's environment, files, and protection from
	// a repository's files are used for the agent.
	Settings executor.Driver
}

// Name returns "acp".
func (ACP) Name() string { return "acp" }

// Prepare implements executor.Driver.
func (d ACP) Prepare(t executor.Task, in executor.Inside) (executor.Invocation, error) {
	if err := checkArgs(d.Name(), t.Args, argument{"permissions", "allow, deny"}); err != nil {
		return executor.Invocation{}, err
	}
	deny := t.Args["permissions"] == "deny"
	for _, name := range []string{rules.ArgPrompt, rules.ArgSystem, rules.ArgSchema, rules.ArgMaxTurns, rules.ArgResume} {
		if rules.HasArg(d.Argv, name) {
			return executor.Invocation{}, fmt.Errorf("%w: {%s} cannot be used in the command line of acp, "+
				"whose protocol sends it", backend.ErrInvalid, name)
		}
	}
	inv, system, err := d.settings(t, in)
	if err != nil {
		return inv, err
	}
	inv.Argv, err = rules.FillArgs(slices.Concat(d.Argv, inv.Safe),
		map[string]string{rules.ArgModel: t.Model, rules.ArgWorkdir: in.Workdir, rules.ArgHome: in.Settings})
	if err != nil {
		return inv, fmt.Errorf("%w: acp: %v", backend.ErrInvalid, err)
	}
	prompt := sanitize.Prompt(executor.WithSystem(system, executor.WithSchema(t.Prompt, t.Schema)))
	inv.Talk = func(stdin io.Writer) executor.Parser {
		p := &acpParser{
			out: stdin, prompt: prompt, workdir: in.Workdir, resume: t.ResumeID,
			mcp: in.MCP, meta: inv.Meta, web: t.Web, deny: deny,
		}
		p.begin()
		return p
	}
	return inv, nil
}

// settings returns the environment and files for an invocation, and the missing part of the system prompt.
func (d ACP) settings(t executor.Task, in executor.Inside) (inv executor.Invocation, system string, err error) {
	if t.MaxTurns > 0 {
		return inv, "", fmt.Errorf("%w: acp cannot limit turns; use a budget or a timeout", backend.ErrUnsupported)
	}
	if d.Settings == nil {
		return executor.Invocation{Env: executor.Environment(t, in), Keep: []string{".local/share"}}, t.System, nil
	}
	t.Args, t.ResumeID, t.Schema = nil, "", nil
	in.MCP = nil // the protocol passes the MCP server
	native, err := d.Settings.Prepare(t, in)
	env := executor.Environment(t, in)
	maps.Copy(env, native.Env)
	inv = executor.Invocation{
		Env: env, Files: native.Files, Keep: native.Keep, Safe: native.Safe, Home: native.Home, Meta: native.Meta,
	}
	return inv, "", err
}

// Outcome implements executor.Driver. The agent is killed after the result, so the exit code is meaningless.
func (ACP) Outcome(seen executor.Seen, exit sandbox.ExecStatus) executor.Outcome {
	if seen.End != nil {
		return seen.End.Outcome
	}
	if seen.Events == 0 && exit.Status == sandbox.ExecCompleted && exit.Signal == "" && exit.ExitCode == 0 {
		return executor.Unparsable
	}
	return executor.Crashed
}

// Parser implements executor.Driver. The returned parser sends no answers, because Run uses Invocation.Talk instead.
func (ACP) Parser() executor.Parser {
	p := &acpParser{out: io.Discard}
	p.begin()
	return p
}
