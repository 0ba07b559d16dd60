package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

// keepFor is how long --keep keeps the sandboxes of a run, unless somebody removes them before.
const keepFor = 7 * 24 * time.Hour

// runOptions are the flags of `run` and `agent run`.
type runOptions struct {
	pairs     []string // NAME=VALUE of a workflow
	inputFile string
	agents    string // of a workflow
	workspace string
	keep      bool
}

// agentsFlag adds the flag for where the agents of workflows are.
func agentsFlag(cmd *cobra.Command, dir *string, whose string) {
	cmd.Flags().StringVar(dir, "agents", "", "directory of the "+whose+" (default agents/ beside or above the workflow)")
}

func (o *runOptions) addTo(cmd *cobra.Command, over, sandboxes string) {
	f := cmd.Flags()
	f.StringVar(&o.inputFile, "input-file", "", "JSON or YAML file with the whole input, - for standard input; "+over+" goes over it")
	f.StringVar(&o.workspace, "workspace", "", "directory to copy into the "+sandboxes)
	f.BoolVar(&o.keep, "keep", false, "leave the run's sandboxes for workcell sessions exec and rm")
}

func newRunCmd(a *app) *cobra.Command {
	o := &runOptions{}
	cmd := a.verb(engineFlags|imageFlags|modelFlags|outputFlags, &cobra.Command{
		Use:   "run WORKFLOW.yaml [flags]",
		Short: "Run a workflow",
		Long: `Run a workflow. Its agents share the run's sandbox, which is removed when the run ends, however it ends.

Every step is written to the run's journal before the next one begins. A run whose process died is resumed in
the same sandbox by ` + "`workcell runs resume`" + ` as long as the sandbox was not idle for too long.

Agents are looked for in agents/ beside or above the workflow, or in --agents. Progress goes to standard error, the
result to standard output.`,
		Example: "  workcell run examples/workflows/debug-and-fix.yaml\n" +
			"  workcell run examples/workflows/debug-and-fix.yaml --workspace ~/project --model anthropic/claude-sonnet-4-5\n" +
			"  workcell run examples/workflows/debug-and-fix.yaml --model scripted/examples/workflows/scripts/debug-and-fix.yaml",
		Args: runArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), a, args[0]) },
	})
	o.addTo(cmd, "--input", "run's sandboxes, in place of the workflow's workspace:")
	agentsFlag(cmd, &o.agents, "agents")
	cmd.Flags().StringArrayVar(&o.pairs, "input", nil, "NAME=VALUE, or NAME=@FILE to read the value from a file; may be repeated")
	return cmd
}

// runArgs wants one workflow. What else people write there is what `agent run` takes.
func runArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasSuffix(args[0], agentExt) {
		return usageError(fmt.Errorf("%s is an agent, not a workflow", args[0]), "`workcell agent run "+args[0]+"` runs it")
	}
	if len(args) > 1 && strings.Contains(args[1], "=") {
		return usageError(fmt.Errorf("%s is not a workflow", clip(args[1], 60)), "an input of a workflow is written --input "+clip(args[1], 60))
	}
	return cobra.ExactArgs(1)(cmd, args)
}

func (o *runOptions) run(ctx context.Context, a *app, path string) (err error) {
	files := agentsFor(path, o.agents)
	wf, err := workflow.Load(path, &workflow.LoadOptions{Agents: files.known})
	if err != nil {
		return fail(exitInvalid, err, "")
	}
	input, err := workflowInput(a.stdin, wf, o.inputFile, o.pairs)
	if err != nil {
		return err
	}
	for _, notice := range strangeInputs(input, wf.InputSchema()) {
		a.notice("notice: %s", notice)
	}
	if dir := cmp.Or(o.workspace, wf.Workspace()); dir != "" {
		a.reportSkipped(ctx, dir)
	}
	j, err := a.openJournal(ctx)
	if err != nil {
		return err
	}
	defer j.Close() // every entry was on the disk before the run went on
	if _, err := j.Prune(ctx, time.Now().Add(-keepRuns)); err != nil {
		a.logger().Warn("old runs cannot be forgotten", "error", err)
	}
	return a.withHost(ctx, agentPaths(files, wf), func(ctx context.Context, h *host, m *session.Manager, p *progress) error {
		note, err := o.note(a, m, path)
		if err != nil {
			return err
		}
		return o.execute(ctx, a, h, m, p, j, note, func(ctx context.Context, e *workflow.Engine) (*workflow.Result, error) {
			return e.Run(ctx, wf, input)
		})
	})
}

// agentPaths finds the files of a workflow's agents, which its loader found to be there.
func agentPaths(files agentFiles, wf *workflow.Workflow) map[string]string {
	out := map[string]string{}
	for _, name := range wf.Agents() {
		if path, err := files.find(name); err == nil {
			out[name] = path
		}
	}
	return out
}

// execute drives a run that do begins or resumes, until it ends or somebody asks for its end.
func (o *runOptions) execute(ctx context.Context, a *app, h *host, m *session.Manager, p *progress, j *sqlitejournal.Journal, note string,
	do func(context.Context, *workflow.Engine) (*workflow.Result, error)) error {
	events := &runProgress{p: p}
	h.onTool = events.tool
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opts := &workflow.Options{
		Workspace: o.workspace, OnPull: p.Pull, Logger: a.logger(), Journal: j.For(m.Owner(), note),
		OnEvent: func(ev workflow.Event) {
			events.event(ev)
			if ev.Kind == workflow.EventRunStarted || ev.Kind == workflow.EventRunResumed {
				go awaitCancel(ctx, j, ev.RunID, cancel) // ends with ctx
			}
		},
	}
	if o.keep {
		opts.Retention = keepFor
	}
	res, err := do(ctx, workflow.NewEngine(m, h, opts))
	if res == nil {
		return runError(err)
	}
	if o.keep {
		tellKept(ctx, m, p, res.RunID)
	}
	if werr := a.print(res, func(w io.Writer) error { return resultTable(w, res) }); werr != nil {
		return errors.Join(err, werr)
	}
	return errors.Join(runError(err), res.Cleanup)
}

// runError sets exit codes for the failures that are not the run's own fault.
func runError(err error) error {
	var we *workflow.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, workflow.ErrInvalidInput):
		return fail(exitInvalid, err, "pass --input NAME=VALUE or --input-file FILE")
	case errors.As(err, &we) && we.Code == workflow.CodeInput && we.Step == "": // the run never began
		return fail(exitInvalid, err, "--workspace names the directory to copy")
	case errors.Is(err, backend.ErrUnavailable), errors.As(err, new(*cliError)), hint.Of(err) != nil:
		return err
	default:
		_, hint := classOf(err)
		if errors.Is(err, backend.ErrNotFound) {
			hint = "" // whatever a run did not find was not a sandbox that somebody named
		}
		return fail(exitFailed, err, hint)
	}
}

// tellKept names the sandboxes of a run that were left.
func tellKept(ctx context.Context, m *session.Manager, p *progress, run string) {
	list, err := m.List(context.WithoutCancel(ctx))
	if err != nil {
		p.Line("sandboxes were kept, but cannot be listed: %v", err)
		return
	}
	for _, s := range list {
		if s.Run == run {
			p.Line("kept %s (%s)", s.ID, s.Key)
		}
	}
	p.Line("remove with: workcell sessions rm %s", run)
}

// resultTable writes a result for people: the facts, then the output as YAML.
func resultTable(w io.Writer, res *workflow.Result) error {
	writeFacts(w, [2]string{"outcome", string(res.Outcome)}, [2]string{"run", res.RunID}, [2]string{"workflow", res.Workflow},
		[2]string{"steps", fmt.Sprint(res.Steps)}, [2]string{"duration", short(res.Duration)})
	if res.Output == nil {
		return nil
	}
	fmt.Fprintln(w, "output:")
	return writeLines(w, "  ", res.Output)
}

func newAgentCmd(a *app) *cobra.Command {
	o := &runOptions{}
	cmd := a.verb(engineFlags|imageFlags|modelFlags|outputFlags, &cobra.Command{
		Use:   "run FILE.prompt [INPUT…] [flags]",
		Short: "Run an agent and print its answer",
		Long: `Run an agent and print its answer. INPUT is NAME=VALUE (NAME=@FILE reads the value from a file), or one text for an
agent that takes one: its only field, or the one named input or task.`,
		Example: "  workcell agent run examples/agents/python-developer.prompt 'print the first 20 primes'\n" +
			"  workcell agent run examples/agents/data-analyst.prompt question='Which region sold most?' csv=@sales.csv",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.runAgent(cmd.Context(), a, args[0], args[1:]) },
	})
	o.addTo(cmd, "INPUT", "agent's sandboxes")
	return group(&cobra.Command{Use: "agent", Aliases: []string{"agents"}, Short: "Run an agent on its own"}, cmd)
}

// agentOutput is what `agent run` prints.
type agentOutput struct {
	Agent        string `json:"agent"`
	RunID        string `json:"run_id"`
	Model        string `json:"model"`
	Text         string `json:"text"`
	Output       any    `json:"output,omitempty"`
	Turns        int    `json:"turns"`
	ToolCalls    int    `json:"tool_calls"`
	InputTokens  int    `json:"input_tokens"`
	OutputTokens int    `json:"output_tokens"`
}

func (o *runOptions) runAgent(ctx context.Context, a *app, path string, args []string) error {
	if !strings.HasSuffix(path, agentExt) {
		return usageError(fmt.Errorf("%s is not an agent", path), "agents end in "+agentExt+"; workflows are for `workcell run`")
	}
	if _, err := os.Stat(path); err != nil {
		return fail(exitInvalid, err, "")
	}
	name := strings.TrimSuffix(filepath.Base(path), agentExt)
	return a.withHost(ctx, map[string]string{name: path},
		func(ctx context.Context, h *host, m *session.Manager, p *progress) error {
			input, err := agentArgs(a.stdin, h.agents[name], o.inputFile, args)
			if err != nil {
				return err
			}
			if err := h.agents[name].CheckInput(input); err != nil {
				return fail(exitInvalid, err, "pass NAME=VALUE or --input-file FILE")
			}
			return o.executeAgent(ctx, a, h, m, p, name, input)
		})
}

// execute runs the agent in a run of its own, so that its id is known and its sandboxes can be kept.
func (o *runOptions) executeAgent(ctx context.Context, a *app, h *host, m *session.Manager, p *progress, name string, input map[string]any) (err error) {
	h.onTool = (&runProgress{p: p}).tool
	run := session.Run{Namespace: session.NamespaceAgent, ID: session.NewRunID()}
	base := session.Request{OnPull: p.Pull}
	if o.keep {
		base.Retention = keepFor
	}
	if o.workspace != "" {
		if base, err = workflow.CopyWorkspace(ctx, base, o.workspace); err != nil {
			return fail(exitInvalid, err, "--workspace names the directory to copy")
		}
		a.reportSkipped(ctx, o.workspace)
	}
	ctx = session.WithBase(session.WithRun(ctx, run), base)
	p.Line("run %s of agent %s", run.ID, name)
	p.Status("agent " + name)
	res, err := h.run(ctx, name, input)
	p.Status("")
	// The end of the manager leaves what the run's own end keeps, and nothing else.
	err = errors.Join(err, m.CloseScope(context.WithoutCancel(ctx), run.Scope()))
	if o.keep {
		tellKept(ctx, m, p, run.ID)
	}
	if err != nil {
		return runError(err)
	}
	out := agentOutput{
		Agent: name, RunID: run.ID, Model: res.Model, Text: res.Text, Output: res.Output, Turns: res.Turns,
		ToolCalls: res.ToolCalls, InputTokens: res.InputTokens, OutputTokens: res.OutputTokens,
	}
	return a.print(out, func(w io.Writer) error {
		if res.Output != nil {
			return writeLines(w, "", res.Output)
		}
		return writeLines(w, "", res.Text)
	})
}
