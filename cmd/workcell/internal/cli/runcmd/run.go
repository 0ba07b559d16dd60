package runcmd

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/workflow"
)

// runVerb returns a command to run a workflow or an agent.
func (a *command) runVerb(cmd *cobra.Command) *cobra.Command {
	var (
		file   string
		pairs  []string
		detach bool
	)
	a.Verb(cli.AgentsFlags|cli.EngineFlags|cli.ImageFlags|cli.ModelFlags|cli.AgentFlags|cli.HostToolFlags|
		cli.OutputFlags|cli.AuditFlags, cmd)
	f := cmd.Flags()
	f.StringArrayVar(&pairs, "input", nil,
		"`NAME=VALUE`: input value, or NAME=@FILE to read the value from a file, - for standard input (repeatable)")
	f.StringVar(&file, "input-file", "",
		"`FILE`: JSON or YAML file with inputs, or - for standard input; --input and INPUT override it")
	f.StringVar(&a.Options.Workspace, "workspace", "",
		"`DIR`: directory to copy into the run's sandboxes; overrides workspace in the workflow")
	f.StringVar(&a.Options.Out, "out", "",
		"`DIR`: directory for outputs; files that did not change during the run are replaced (default: keep the outputs "+
			"for workcell runs get)")
	f.BoolVar(&a.Options.Force, "force", false,
		"overwrite files in the --out directory even if they differ or changed during the run")
	f.BoolVar(&a.Options.Apply, "apply", false,
		"if the run succeeds, apply its changes to the original workspace directory")
	f.StringVar(&a.Options.User, "user", "",
		"`NAME`: end user whose sandbox to use, for agents with session: user; the sandbox is kept after the run")
	f.BoolVar(&a.Options.Keep, "keep", false,
		"keep the run's sandboxes for 7 days (retention.kept) instead of removing them when the run ends")
	f.BoolVarP(&detach, "detach", "d", false, "add the run to the queue for workcell worker and print its ID")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := app.LoadProgram(args[0], a.Options.Agents)
		if err != nil {
			return err
		}
		input, err := a.input(cmd.Context(), p.Workflow, file, append(pairs, args[1:]...))
		if err != nil {
			return err
		}
		if !detach {
			return a.App.Run(cmd.Context(), p, input, a.showResult)
		}
		e, err := a.App.Detach(cmd.Context(), p, input)
		if err != nil {
			return err
		}
		return a.PrintLines(app.RunView{ID: e.RunID, Workflow: p.ID, State: app.RunQueued, Started: e.Time}, e.RunID)
	}
	return cmd
}

func newRunCmd(a *command) *cobra.Command {
	return a.runVerb(&cobra.Command{
		Use:   "run WORKFLOW.yaml|AGENT.prompt [INPUT…] [flags]",
		Short: "Run a workflow or an agent",
		Long: `Run a workflow and print its result, or run an agent and print its answer. Progress is printed to standard error, the
result to standard output. To cancel the run, press Ctrl-C, or use ` + "`workcell runs cancel`" + ` in another
terminal. A canceled run cannot be resumed. The exit code is 1 if the run fails, 4 if an API key is missing, and 7 if
--apply skips files that you changed during the run. workcell --help lists the others.

By default, the agents in a workflow share one sandbox. Workcell removes it when the run ends, even if it fails or is
canceled, unless you pass --keep or the workflow sets retention. If the workflow sets checkpoints: true, the sandbox of
a failed run is kept until its idle timeout, so that you can retry with ` + "`workcell runs resume RUN --from STEP`" + `.

Each step is recorded in the run's journal before the next step starts. If the process is killed, continue the run in
the same sandbox with ` + "`workcell runs resume RUN`" + `, until the sandbox's idle timeout (default 15 minutes).
To list run IDs, use ` + "`workcell runs ls`" + `. To see what a run did, use ` + "`workcell runs trace RUN`" + `.

Unless you pass --agents, a workflow's agents are loaded from agents/ next to the workflow file, from ../agents, or from
the workflow's own directory. Pass inputs with --input or --input-file. For an agent, you can also pass them as INPUT:
NAME=VALUE, NAME=@FILE, or plain text for the agent's only input field or the field named input or task. To read text
from standard input, pass -. Values of input fields that are not text, such as lists and objects, are JSON.

The agent's file names the model; --model overrides it. Set the provider's API key in the environment, for example
GEMINI_API_KEY; docs/reference/environment.md lists all providers. To try a run without an API key, use
--model scripted/PATH.yaml, which replays recorded answers.

The sandbox section of the workflow or agent sets the image, limits, environment variables, and network of sandboxes. By
default, a sandbox has a Python image, 1 CPU, 2 GiB of memory, and no network. To allow single hosts, list them in
network.allow. Code in a sandbox does not see your environment or API keys.

A workflow fails after one hour or 50 steps unless it sets timeout or max_steps. A single agent times out after 7 days.
To set a shorter timeout, use the agent in a workflow. To limit the cost of a coding agent, set budget in its file. For
other agents, set maxTurns.

--workspace copies a directory to /workspace in the sandboxes, except for links, special files, .git, .hg, and .svn. The
original is left unchanged unless you pass --apply or run ` + "`workcell runs apply`" + ` later. To see the changes
first, use ` + "`workcell runs diff`" + `. The changes and outputs of a run are kept for 30 days (retention.runs).

--detach requires a PostgreSQL database (--state). It queues the run and its files there and prints the run ID. A
` + "`workcell worker`" + ` on any host then runs it.`,
		Example: "  workcell run examples/workflows/debug-and-fix.yaml\n" +
			"  workcell run examples/workflows/debug-and-fix.yaml --workspace ~/project --model anthropic/claude-sonnet-4-5\n" +
			"  workcell run examples/workflows/debug-and-fix.yaml --model " +
			"scripted/examples/workflows/scripts/debug-and-fix.yaml\n" +
			"  workcell run examples/agents/python-developer.prompt 'print the first 20 primes'\n" +
			"  workcell run --state postgres://user@host/database --detach fix.yaml",
		Args: runArgs,
	})
}

// runArgs requires a file. Only agents accept more arguments.
func runArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasSuffix(args[0], app.AgentExt) {
		return nil
	}
	if len(args) > 1 {
		return app.UsageError(fmt.Errorf("unexpected argument %q", sanitize.Cut(args[1], 60)),
			"pass workflow inputs with --input NAME=VALUE")
	}
	return cobra.ExactArgs(1)(cmd, args)
}

func newAgentCmd(a *command) *cobra.Command {
	cmd := a.runVerb(&cobra.Command{
		Use:   "run FILE.prompt [INPUT…] [flags]",
		Short: "Run an agent and print its answer",
		Long:  "Run an agent and print its answer, as `workcell run FILE.prompt` does. For INPUT, see `workcell run --help`.",
		Example: "  workcell agent run examples/agents/python-developer.prompt 'print the first 20 primes'\n" +
			"  workcell agent run examples/agents/data-analyst.prompt question='Which region sold most?' " +
			"csv=@examples/workflows/projects/sales/sales.csv",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && !strings.HasSuffix(args[0], app.AgentExt) {
				return app.UsageError(fmt.Errorf("%s is not an agent", args[0]),
					"agent files end in "+app.AgentExt+"; to run a workflow, use `workcell run`")
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
	})
	return cli.Subcommands(&cobra.Command{Use: "agent", Aliases: []string{"agents"}, Short: "Run a single agent"}, cmd)
}

// resultTable prints a result as text: the facts, and then the output.
func resultTable(w io.Writer, res *workflow.Result) error {
	err := cli.WriteFacts(w, "outcome", string(res.Outcome), "run", res.RunID, "workflow", res.Workflow,
		"steps", fmt.Sprint(res.Steps), "duration", cli.Short(res.Duration))
	if err != nil || res.Output == nil {
		return err
	}
	fmt.Fprintln(w, "output:")
	return cli.WriteLines(w, "  ", res.Output)
}

// AgentOutput is the result of an agent run.
type AgentOutput struct {
	Agent        string `json:"agent"`
	RunID        string `json:"run_id"`
	Model        string `json:"model"`
	Text         string `json:"text"`
	Output       any    `json:"output,omitempty"`
	Error        string `json:"error,omitempty"` // reason for the failure of the run
	Turns        int    `json:"turns"`
	ToolCalls    int    `json:"tool_calls"`
	InputTokens  int    `json:"input_tokens"`
	OutputTokens int    `json:"output_tokens"`

	Executor *executorOutput `json:"executor,omitempty"`

	Outputs []string    `json:"outputs,omitempty"` // names of the created files
	Patch   *patch.Stat `json:"patch,omitempty"`   // size of the changes

	Evidence []sandbox.Evidence `json:"evidence,omitempty"` // as in workflow.Result
}

// executorOutput is the result of a coding agent in the command's output.
type executorOutput struct {
	Outcome    string   `json:"outcome"`
	SessionID  string   `json:"session_id,omitempty"`
	Resumed    bool     `json:"resumed,omitempty"`
	CostUSD    *float64 `json:"cost_usd,omitempty"` // absent if a model has no price
	Requests   int64    `json:"requests"`           // requests to the model
	HookErrors []string `json:"hook_errors,omitempty"`
}

// showResult prints the result of a run for app.App.
func (a *command) showResult(wf *workflow.Workflow, res *workflow.Result, got app.Answer, err error) error {
	if wf.Agent() == nil {
		return a.Print(res, func(w io.Writer) error { return resultTable(w, res) })
	}
	if got.Text == "" { // the agent did not answer, or it answered before the run was interrupted
		if text, ok := res.Output.(string); ok {
			got.Text = text
		} else {
			got.Output = res.Output
		}
	}
	if err != nil && got.Text == "" && a.Out == cli.OutputTable {
		// Otherwise print the answer, because the user paid for it.
		return nil
	}
	out := AgentOutput{
		Agent: wf.ID, RunID: res.RunID, Model: got.Model, Text: got.Text, Output: got.Output, Turns: got.Turns,
		ToolCalls: got.ToolCalls, InputTokens: got.InputTokens, OutputTokens: got.OutputTokens,
		Outputs: slices.Sorted(maps.Keys(res.Outputs)), Evidence: res.Evidence,
	}
	if r := got.Executor; r != nil {
		out.Executor = &executorOutput{
			Outcome: string(r.Outcome), SessionID: r.SessionID, Resumed: r.Resumed, CostUSD: r.Cost(),
			Requests: r.Metered.Requests, HookErrors: r.HookErrors,
		}
	}
	if err != nil {
		out.Error = err.Error()
	}
	if res.Patch != nil {
		stat := res.Patch.Stat()
		out.Patch = &stat
	}
	return a.Print(out, func(w io.Writer) error {
		if out.Output != nil {
			return cli.WriteLines(w, "", out.Output)
		}
		return cli.WriteLines(w, "", out.Text)
	})
}
