package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session/transfer"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// runVerb returns a command that runs a workflow or an agent.
func (a *command) runVerb(cmd *cobra.Command) *cobra.Command {
	var (
		file   string
		pairs  []string
		detach bool
	)
	a.verb(agentsFlags|engineFlags|imageFlags|modelFlags|outputFlags|auditFlags, cmd)
	f := cmd.Flags()
	f.StringArrayVar(&pairs, "input", nil,
		"input value (`NAME=VALUE`), or NAME=@FILE to read the value from a file (repeatable)")
	f.StringVar(&file, "input-file", "",
		"JSON or YAML input `FILE`, or - for standard input; --input and INPUT override it")
	f.StringVar(&a.Options.Workspace, "workspace", "",
		"`DIR` to copy into the run's sandboxes instead of workspace: in the workflow")
	f.StringVar(&a.Options.Out, "out", "", "`DIR` to write the outputs to (default: keep them for workcell runs get)")
	f.BoolVar(&a.Options.Force, "force", false, "overwrite files in --out that differ or have changed during the run")
	f.BoolVar(&a.Options.Apply, "apply", false, "if the run succeeds, apply its changes to the source directory of its workspace")
	f.StringVar(&a.Options.User, "user", "", "end user `NAME`, for agents with session: user; the sandbox of this user is kept")
	f.BoolVar(&a.Options.Keep, "keep", false,
		"keep the run's sandboxes for 7 days (retention.kept) instead of removing them when the run ends")
	f.BoolVarP(&detach, "detach", "d", false, "add the run to the queue for workcell worker and print its ID")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		wf, agents, err := loadWorkflow(args[0], a.Options.Agents)
		if err != nil {
			return err
		}
		input, err := a.input(a.stdin, wf, file, append(pairs, args[1:]...))
		if err != nil {
			return err
		}
		if detach {
			return a.detach(cmd, wf, agents, input)
		}
		return a.app.run(cmd.Context(), wf, agents, input, a.showResult)
	}
	return cmd
}

func newRunCmd(a *command) *cobra.Command {
	return a.runVerb(&cobra.Command{
		Use:   "run WORKFLOW.yaml|AGENT.prompt [INPUT…] [flags]",
		Short: "Run a workflow or an agent",
		Long: `Run a workflow and print its result, or run an agent and print its answer. By default, the agents in a
workflow share one sandbox. It is removed when the run ends, even if the run fails, unless you pass --keep or the
workflow sets retention:. With checkpoints: true, the sandbox of a failed run is also kept. Progress is printed to
standard error. Press Ctrl-C to stop the run.

Each step is recorded in the run's journal before the next step starts. If the process is killed, you can continue the
run in the same sandbox with ` + "`workcell runs resume`" + `, until the sandbox reaches its idle timeout (15 minutes by
default).

The agents of a workflow are loaded from agents/ next to the workflow, ../agents, or the workflow's directory, unless
you set --agents. INPUT is for agents: NAME=VALUE, NAME=@FILE to read the value from a file, or plain text for the
agent's only input field or for its field named input or task.

A workflow runs for at most one hour and 50 steps unless it sets timeout: and max_steps:. Sandboxes have no network
access unless the file sets network:. The directory of --workspace is copied; it changes only if you pass --apply or run
` + "`workcell runs apply`" + ` later.

With --detach, the command adds the run and its files to the queue in the PostgreSQL database (--state) and prints the
run ID. A ` + "`workcell worker`" + ` on any host then runs it.`,
		Example: "  workcell run examples/workflows/debug-and-fix.yaml\n" +
			"  workcell run examples/workflows/debug-and-fix.yaml --workspace ~/project --model anthropic/claude-sonnet-4-5\n" +
			"  workcell run examples/workflows/debug-and-fix.yaml --model scripted/examples/workflows/scripts/debug-and-fix.yaml\n" +
			"  workcell run examples/agents/python-developer.prompt 'print the first 20 primes'\n" +
			"  workcell runs logs --follow $(workcell run --detach fix.yaml)",
		Args: runArgs,
	})
}

// stayHere are the flags of `run` that say what a machine does and allows, and what to do about each with --detach.
func stayHere() map[string]string {
	said := "pass it to `workcell worker`, or configure it on the worker's host"
	later := "collect the results later with `workcell runs get RUN` or `workcell runs apply RUN`"
	return map[string]string{
		"allow-image": said, "map-image": said, "mount": said, "oci-runtime": said, "egress-allow-private": said, "pip-index": said,
		"npm-registry": said, "host-tools": said, "audit": said, "audit-hash": said, "trace-content": said,
		"out": later, "force": later, "apply": later,
	}
}

// detach puts a run into the queue.
func (a *command) detach(cmd *cobra.Command, wf *workflow.Workflow, agents map[string]string, input map[string]any) error {
	flags := stayHere()
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		if cmd.Flags().Changed(name) {
			return usageError(fmt.Errorf("--%s cannot be used with --detach", name), flags[name])
		}
	}
	e, err := a.app.detach(cmd.Context(), wf, agents, input)
	if err != nil {
		return err
	}
	return a.printQueued(runOutput{ID: e.RunID, Workflow: wf.ID, State: runQueued, Started: e.Time})
}

// runArgs requires a file. Only agents accept more arguments.
func runArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasSuffix(args[0], agentExt) {
		return nil
	}
	if len(args) > 1 && strings.Contains(args[1], "=") {
		return usageError(fmt.Errorf("%s is not a workflow", sanitize.Cut(args[1], 60)), "pass workflow inputs with --input "+sanitize.Cut(args[1], 60))
	}
	return cobra.ExactArgs(1)(cmd, args)
}

func newAgentCmd(a *command) *cobra.Command {
	cmd := a.runVerb(&cobra.Command{
		Use:   "run FILE.prompt [INPUT…] [flags]",
		Short: "Run an agent and print its answer",
		Long: `Run an agent and print its answer, as ` + "`workcell run FILE.prompt`" + ` does. INPUT is NAME=VALUE, or
NAME=@FILE to read the value from a file.

INPUT can also be plain text, for the agent's only input field or for its field named input or task.`,
		Example: "  workcell agent run examples/agents/python-developer.prompt 'print the first 20 primes'\n" +
			"  workcell agent run examples/agents/data-analyst.prompt question='Which region sold most?' csv=@sales.csv",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && !strings.HasSuffix(args[0], agentExt) {
				return usageError(fmt.Errorf("%s is not an agent", args[0]),
					"agent files end in "+agentExt+"; to run a workflow, use `workcell run`")
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
	})
	return subcommands(&cobra.Command{Use: "agent", Aliases: []string{"agents"}, Short: "Run a single agent"}, cmd)
}

// runSpec is a run as execute drives it.
type runSpec struct {
	wf     *workflow.Workflow
	note   string
	before patch.Stamps                                  // files in --out when it began
	onKept func(ctx context.Context, runID string) error // workflow.Options.OnKept; nil for runs of this machine
	show   showResult
	do     func(context.Context, *workflow.Engine) (*workflow.Result, error) // begins or resumes it
}

// showResult shows the result of a run: for a workflow of ForAgent, the agent's answer. err is the run's.
type showResult func(wf *workflow.Workflow, res *workflow.Result, got answer, err error) error

// run runs a workflow, and puts what it made where the flags say.
func (a *app) run(ctx context.Context, wf *workflow.Workflow, agents map[string]string, input map[string]any, show showResult) error {
	workspace := a.place(wf)
	if workspace.Dir != "" {
		a.reportSkipped(ctx, workspace)
	}
	dir, before, err := a.checkHome(wf.Outputs(), workspace.Dir)
	if err != nil {
		return err
	}
	flags := a.opts.RunFlags
	flags.Out = dir
	a = a.withFlags(flags)
	j, err := a.openJournal(ctx)
	if err != nil {
		return err
	}
	defer j.Close() // every entry was on the disk before the run went on
	a.pruneRuns(ctx, j)
	return a.withHost(ctx, managerUse{}, agents, true, func(ctx context.Context, h *host) error {
		note, err := h.note(wf.Path)
		if err != nil {
			return err
		}
		return h.execute(ctx, j, runSpec{
			wf: wf, note: note, before: before, show: show,
			do: func(ctx context.Context, e *workflow.Engine) (*workflow.Result, error) { return e.Run(ctx, wf, input) },
		})
	})
}

// execute drives a run until it ends or somebody asks for its end.
func (h *host) execute(ctx context.Context, j runstore.Store, spec runSpec) error {
	h.onTool = h.p.Tool
	answered := h.alone(spec.wf)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go state.AwaitLost(ctx, h.m.records, h.m.Owner(), func(why error) { cancel(fmt.Errorf("%w: %w", workflow.ErrInterrupted, why)) }) // ends with ctx
	kept, err := h.runFiles()
	if err != nil {
		return err
	}
	place, err := h.state()
	if err != nil {
		return err
	}
	var began sync.Once // the first event is of the run, later ones may be of workflows that it runs inside
	res, err := spec.do(ctx, workflow.NewEngine(h.m.Manager, h, &workflow.Options{
		Workspace: h.opts.Workspace, Retention: h.retention(), OnPull: h.p.Pull, Logger: h.logger(), Journal: j.For(h.m.Owner(), spec.note),
		Results: string(kept), OnKept: spec.onKept,
		OnEvent: func(ev workflow.Event) {
			h.p.Event(ev)
			began.Do(func() {
				if ev.Kind != workflow.EventRunStarted || place.URL == "" {
					return
				}
				if err := kept.KeepNote(ev.RunID, spec.note); err != nil {
					h.p.Line("run %s cannot be resumed: %v", ev.RunID, err)
				}
			})
			if ev.Kind == workflow.EventRunStarted || ev.Kind == workflow.EventRunResumed {
				h.keepTrace(ev.RunID)
				go runstore.AwaitCancel(ctx, j, ev.RunID, func() { // ends with ctx
					cancel(errors.New("cancelled by `workcell runs cancel`"))
				})
			}
		},
	}))
	if res == nil {
		return runError(err)
	}
	h.showKept(ctx, res.RunID)
	got := answered()
	if got.err != nil {
		err = got.err // which does not name the step
	}
	if werr := spec.show(spec.wf, res, got, err); werr != nil {
		return errors.Join(err, werr)
	}
	if cause := context.Cause(ctx); errors.Is(cause, workflow.ErrInterrupted) {
		err = cause
	}
	if res.Unfinished != nil {
		return errors.Join(runError(err), h.leave(ctx, res.RunID))
	}
	_ = kept.RemoveBegun(res.RunID) // else it goes with the next command
	home := h.bringHome(homecoming{
		Made: transfer.Made{Outputs: res.Outputs, Missing: res.Missing, Patch: res.Patch},
		run:  res.RunID, dir: res.Workspace, before: spec.before, succeeded: err == nil,
	})
	return errors.Join(runError(err), res.Cleanup, home)
}

// place returns the directory that is copied into a workflow's sandboxes. Only the flag accepts a directory of any place.
func (a *app) place(wf *workflow.Workflow) transfer.Place {
	if a.opts.Workspace != "" {
		return transfer.Place{Dir: a.opts.Workspace}
	}
	return wf.Workspace()
}

// retention returns how long the sandboxes of a run stay behind its end, unless somebody removes them before.
func (h *host) retention() time.Duration {
	if h.opts.Keep {
		if conf, err := h.config(); err == nil { // else there was no manager
			return conf.KeepSandboxes
		}
	}
	return 0
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
		return fail(exitInvalid, err, "pass the directory to copy with --workspace DIR")
	case errors.Is(err, backend.ErrUnavailable), hint.Of(err) != nil:
		return err
	default:
		_, hint := classOf(err)
		if errors.Is(err, backend.ErrNotFound) {
			hint = "" // whatever a run did not find was not a sandbox that somebody named
		}
		return fail(exitFailed, err, hint)
	}
}

// showKept names the sandboxes of a run that were left.
func (h *host) showKept(ctx context.Context, run string) {
	if !h.opts.Keep {
		return
	}
	list, err := h.m.List(context.WithoutCancel(ctx))
	if err != nil {
		h.p.Line("cannot list the kept sandboxes: %v", err)
		return
	}
	for _, s := range list {
		if s.Run == run {
			h.p.Line("kept sandbox %s (%s)", s.ID, s.Key)
		}
	}
	h.p.Line("to remove them, run: workcell sessions rm %s", run)
}

// resultTable writes a result for people: the facts, then the output.
func resultTable(w io.Writer, res *workflow.Result) error {
	writeFacts(w, [2]string{"outcome", string(res.Outcome)}, [2]string{"run", res.RunID}, [2]string{"workflow", res.Workflow},
		[2]string{"steps", fmt.Sprint(res.Steps)}, [2]string{"duration", short(res.Duration)})
	if res.Output == nil {
		return nil
	}
	fmt.Fprintln(w, "output:")
	return writeLines(w, "  ", res.Output)
}

// agentOutput is the result of the run of an agent.
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

	Executor *executorOutput `json:"executor,omitempty"`

	Outputs []string    `json:"outputs,omitempty"` // names of the files that it made
	Patch   *patch.Stat `json:"patch,omitempty"`   // the size of what it changed
}

// executorOutput is what is told of a coding agent.
type executorOutput struct {
	Outcome    string   `json:"outcome"`
	SessionID  string   `json:"session_id,omitempty"`
	Resumed    bool     `json:"resumed,omitempty"`
	CostUSD    *float64 `json:"cost_usd,omitempty"` // absent when a model has no price
	Requests   int64    `json:"requests"`           // to its model
	HookErrors []string `json:"hook_errors,omitempty"`
}

func newExecutorOutput(r *tools.ExecutorResult) *executorOutput {
	if r == nil {
		return nil
	}
	return &executorOutput{
		Outcome: string(r.Outcome), SessionID: r.SessionID, Resumed: r.Resumed, CostUSD: r.Cost(), Requests: r.Metered.Requests, HookErrors: r.HookErrors,
	}
}

// answer is the answer of an agent, or its failure.
type answer struct {
	tools.AgentResult
	err error
}

// alone makes the host keep the answer if wf runs a single agent. The function returns the answer, which is empty if no
// agent has run in this process.
func (h *host) alone(wf *workflow.Workflow) func() answer {
	var kept atomic.Pointer[answer]
	if wf.Agent() != nil {
		if h.p != nil {
			h.p.Kind("agent")
		}
		h.onReply = func(res tools.AgentResult, err error) { kept.Store(&answer{res, err}) }
	}
	return func() answer {
		if got := kept.Load(); got != nil {
			return *got
		}
		return answer{}
	}
}

// leave keeps the sandboxes of a run whose results are not collected, and prints how to collect them.
func (h *host) leave(ctx context.Context, runID string) error {
	if h.opts.Apply {
		h.p.Line("--apply: changes not applied because the results were not collected")
	}
	ctx = context.WithoutCancel(ctx)
	list, err := h.m.List(ctx)
	if err != nil {
		h.p.Line("the results of run %s are still in its sandbox, which cannot be listed: %v", runID, err)
	}
	for _, s := range list {
		if s.Run == runID {
			h.p.Line("sandbox %s still has the results of run %s; to copy them, run: workcell sessions cp %[1]s:. DIR",
				s.ID, runID)
		}
	}
	h.p.Line("after you fix the problem, collect the results with: workcell runs resume %s", runID)
	return h.m.Detach(ctx)
}

// showResult prints the result of a run, as showResult says.
func (a *command) showResult(wf *workflow.Workflow, res *workflow.Result, got answer, err error) error {
	if wf.Agent() == nil {
		return a.print(res, func(w io.Writer) error { return resultTable(w, res) })
	}
	if got.Text == "" { // the agent did not answer, or it answered before the run was interrupted
		if text, ok := res.Output.(string); ok {
			got.Text = text
		} else {
			got.Output = res.Output
		}
	}
	if err != nil && got.Text == "" { // else the user has paid for the answer
		return nil
	}
	out := agentOutput{
		Agent: wf.ID, RunID: res.RunID, Model: got.Model, Text: got.Text, Output: got.Output, Turns: got.Turns,
		ToolCalls: got.ToolCalls, InputTokens: got.InputTokens, OutputTokens: got.OutputTokens,
		Outputs: slices.Sorted(maps.Keys(res.Outputs)), Executor: newExecutorOutput(got.Executor),
	}
	if res.Patch != nil {
		stat := res.Patch.Stat()
		out.Patch = &stat
	}
	return a.print(out, func(w io.Writer) error {
		if out.Output != nil {
			return writeLines(w, "", out.Output)
		}
		return writeLines(w, "", out.Text)
	})
}
