package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/state"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// runVerb returns a command that runs something: with the flags for its input and its sandboxes.
func (a *app) runVerb(groups flagGroup, inputFile *string, over, sandboxes string, cmd *cobra.Command) *cobra.Command {
	a.verb(groups|engineFlags|imageFlags|modelFlags|outputFlags|auditFlags, cmd)
	f := cmd.Flags()
	f.StringVar(inputFile, "input-file", "", "JSON or YAML input `FILE`, or - for standard input; "+over+" overrides it")
	f.StringVar(&a.Workspace, "workspace", "", "`DIR` to copy into the "+sandboxes)
	f.StringVar(&a.Out, "out", "", "`DIR` to write the outputs to (default: keep them for workcell runs get)")
	f.BoolVar(&a.Force, "force", false, "overwrite files in --out that differ or have changed during the run")
	f.BoolVar(&a.Apply, "apply", false, "if the run succeeds, apply its changes to the source directory of its workspace")
	f.StringVar(&a.User, "user", "", "end user `NAME`, for agents with session: user; the sandbox of this user is kept")
	f.BoolVar(&a.Keep, "keep", false,
		"keep the run's sandboxes for 7 days (retention.kept) instead of removing them when the run ends")
	return cmd
}

func newRunCmd(a *app) *cobra.Command {
	var (
		file   string
		pairs  []string
		detach bool
	)
	cmd := a.runVerb(agentsFlags, &file, "--input", "run's sandboxes instead of workspace: in the workflow", &cobra.Command{
		Use:   "run WORKFLOW.yaml [flags]",
		Short: "Run a workflow",
		Long: `Run a workflow and print its result. The agents in a workflow share one sandbox. It is removed when the run ends,
even if the run fails. Progress is printed to standard error. Press Ctrl-C to stop the run.

Each step is recorded in the run's journal before the next step starts. If the process is killed, you can continue the
run in the same sandbox with ` + "`workcell runs resume`" + `, until the sandbox reaches its idle timeout (15 minutes by
default).

Agents are loaded from agents/ next to the workflow, ../agents, or the workflow's directory, unless you set --agents.
With --detach, the command adds the run and its files to the queue in the PostgreSQL database (--state) and prints the
run ID. A ` + "`workcell worker`" + ` on any host then runs it.`,
		Example: "  workcell run examples/workflows/debug-and-fix.yaml\n" +
			"  workcell run examples/workflows/debug-and-fix.yaml --workspace ~/project --model anthropic/claude-sonnet-4-5\n" +
			"  workcell run examples/workflows/debug-and-fix.yaml --model scripted/examples/workflows/scripts/debug-and-fix.yaml\n" +
			"  workcell runs logs --follow $(workcell run --detach fix.yaml)",
		Args: runArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if detach {
				return a.detach(cmd, args[0], file, pairs)
			}
			return a.run(cmd.Context(), args[0], file, pairs)
		},
	})
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "add the run to the queue for workcell worker and print its ID")
	cmd.Flags().StringArrayVar(&pairs, "input", nil,
		"input value (`NAME=VALUE`), or NAME=@FILE to read the value from a file (repeatable)")
	return cmd
}

// runArgs wants one workflow. What else people write there is what `agent run` takes.
func runArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasSuffix(args[0], agentExt) {
		return usageError(fmt.Errorf("%s is an agent, not a workflow", args[0]), "to run it, use `workcell agent run "+args[0]+"`")
	}
	if len(args) > 1 && strings.Contains(args[1], "=") {
		return usageError(fmt.Errorf("%s is not a workflow", clip(args[1], 60)), "pass workflow inputs with --input "+clip(args[1], 60))
	}
	return cobra.ExactArgs(1)(cmd, args)
}

func (a *app) run(ctx context.Context, path, file string, pairs []string) error {
	wf, agents, err := loadWorkflow(path, a.Agents)
	if err != nil {
		return err
	}
	input, err := workflowInput(a.stdin, wf, file, pairs)
	if err != nil {
		return err
	}
	a.reportStrange(input, wf.InputSchema())
	workspace := a.place(wf)
	if workspace.Dir != "" {
		a.reportSkipped(ctx, workspace)
	}
	if err := a.checkHome(wf.Outputs(), workspace.Dir); err != nil {
		return err
	}
	j, err := a.openJournal(ctx)
	if err != nil {
		return err
	}
	defer j.Close() // every entry was on the disk before the run went on
	a.pruneRuns(ctx, j)
	return a.withHost(ctx, agents, true, func(ctx context.Context, h *host) error {
		note, err := h.note(path)
		if err != nil {
			return err
		}
		return h.execute(ctx, j, note, func(ctx context.Context, e *workflow.Engine) (*workflow.Result, error) {
			return e.Run(ctx, wf, input)
		})
	})
}

// execute drives a run that do begins or resumes, until it ends or somebody asks for its end.
func (h *host) execute(ctx context.Context, j runstore.Store, note string,
	do func(context.Context, *workflow.Engine) (*workflow.Result, error)) error {
	h.onTool = h.p.tool
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go state.AwaitLost(ctx, h.records, h.m.Owner(), func(why error) { cancel(fmt.Errorf("%w: %w", workflow.ErrInterrupted, why)) }) // ends with ctx
	kept, err := h.runFiles()
	if err != nil {
		return err
	}
	place, err := h.state()
	if err != nil {
		return err
	}
	var began sync.Once // the first event is of the run, later ones may be of workflows that it runs inside
	res, err := do(ctx, workflow.NewEngine(h.m, h, &workflow.Options{
		Workspace: h.Workspace, Retention: h.retention(), OnPull: h.p.Pull, Logger: h.logger(), Journal: j.For(h.m.Owner(), note),
		Results: string(kept), OnKept: h.onKept,
		OnEvent: func(ev workflow.Event) {
			h.p.event(ev)
			began.Do(func() {
				if ev.Kind != workflow.EventRunStarted || place.URL == "" {
					return
				}
				if err := kept.KeepNote(ev.RunID, note); err != nil {
					h.p.Line("run %s cannot be resumed: %v", ev.RunID, err)
				}
			})
			if ev.Kind == workflow.EventRunStarted || ev.Kind == workflow.EventRunResumed {
				h.keepTrace(ev.RunID)
				go awaitCancel(ctx, j, ev.RunID, cancel) // ends with ctx
			}
		},
	}))
	if res == nil {
		return runError(err)
	}
	h.showKept(ctx, res.RunID)
	if werr := h.print(res, func(w io.Writer) error { return resultTable(w, res) }); werr != nil {
		return errors.Join(err, werr)
	}
	if cause := context.Cause(ctx); errors.Is(cause, workflow.ErrInterrupted) {
		err = cause
	}
	if res.Unfinished != nil {
		return errors.Join(runError(err), h.leave(ctx, session.Run{Namespace: session.NamespaceWorkflow, ID: res.RunID}, "workcell runs resume "+res.RunID))
	}
	_ = kept.RemoveBegun(res.RunID) // else it goes with the next command
	home := h.bringHome(homecoming{
		Made: transfer.Made{Outputs: res.Outputs, Missing: res.Missing, Patch: res.Patch},
		run:  res.RunID, dir: res.Workspace, succeeded: err == nil,
	})
	return errors.Join(runError(err), res.Cleanup, home)
}

// place returns the directory that is copied into a workflow's sandboxes. Only the flag accepts a directory of any place.
func (a *app) place(wf *workflow.Workflow) transfer.Place {
	if a.Workspace != "" {
		return transfer.Place{Dir: a.Workspace}
	}
	return wf.Workspace()
}

// retention returns how long the sandboxes of a run stay behind its end, unless somebody removes them before.
func (h *host) retention() time.Duration {
	if h.Keep {
		return h.loaded.KeepSandboxes
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

// showKept names the sandboxes of a run that were left.
func (h *host) showKept(ctx context.Context, run string) {
	if !h.Keep {
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

func newAgentCmd(a *app) *cobra.Command {
	file := ""
	cmd := a.runVerb(0, &file, "INPUT", "agent's sandbox", &cobra.Command{
		Use:   "run FILE.prompt [INPUT…] [flags]",
		Short: "Run an agent and print its answer",
		Long: `Run an agent and print its answer. INPUT is NAME=VALUE, or NAME=@FILE to read the value from a file.

INPUT can also be plain text, for the agent's only input field or for its field named input or task.`,
		Example: "  workcell agent run examples/agents/python-developer.prompt 'print the first 20 primes'\n" +
			"  workcell agent run examples/agents/data-analyst.prompt question='Which region sold most?' csv=@sales.csv",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runAgent(cmd.Context(), args[0], file, args[1:])
		},
	})
	return group(&cobra.Command{Use: "agent", Aliases: []string{"agents"}, Short: "Run a single agent"}, cmd)
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

func (a *app) runAgent(ctx context.Context, path, file string, args []string) error {
	if !strings.HasSuffix(path, agentExt) {
		return usageError(fmt.Errorf("%s is not an agent", path), "agent files end in "+agentExt+"; to run a workflow, use `workcell run`")
	}
	if _, err := os.Stat(path); err != nil {
		return fail(exitInvalid, err, "")
	}
	name := strings.TrimSuffix(filepath.Base(path), agentExt)
	if err := a.forgetOldRuns(ctx); err != nil {
		return err
	}
	return a.withHost(ctx, map[string]string{name: path}, true, func(ctx context.Context, h *host) error {
		input, err := agentArgs(a.stdin, h.agents[name], file, args)
		if err != nil {
			return err
		}
		if err := h.agents[name].CheckInput(input); err != nil {
			return fail(exitInvalid, err, "pass NAME=VALUE or --input-file FILE")
		}
		return h.executeAgent(ctx, name, input)
	})
}

// leave leaves the sandboxes of a run that have what could not be brought home, and says how to have it.
func (h *host) leave(ctx context.Context, run session.Run, again string) error {
	if h.Apply {
		h.p.Line("--apply: changes not applied because the results were not collected")
	}
	ctx = context.WithoutCancel(ctx)
	list, err := h.m.List(ctx)
	if err != nil {
		h.p.Line("the results of run %s are still in its sandbox, which cannot be listed: %v", run.ID, err)
	}
	for _, s := range list {
		if s.Run == run.ID {
			h.p.Line("sandbox %s still has the results of run %s; to copy them, run: workcell sessions cp %s:. DIR", s.ID, run.ID, s.ID)
		}
	}
	if again != "" {
		h.p.Line("after you fix the problem, collect the results with: %s", again)
	}
	return h.m.Detach(ctx)
}

// agentWorkspace takes what the sandboxes of an agent's run begin with; nil for nothing. end must be called when the run has
// ended, with whether what it made is nowhere but in its sandbox: the patch can then be told only with this.
func (h *host) agentWorkspace(ctx context.Context, run string) (began *transfer.Snapshot, end func(stuck bool) error, err error) {
	if h.Workspace == "" {
		return nil, func(bool) error { return nil }, nil
	}
	own, err := h.snapshots(h.m.Owner())
	if err != nil {
		return nil, nil, err
	}
	kept, err := h.runFiles()
	if err != nil {
		return nil, nil, err
	}
	if began, err = transfer.NewSnapshot(ctx, transfer.Place{Dir: h.Workspace}, own.Base(run)); err != nil {
		return nil, nil, fail(exitInvalid, fmt.Errorf("workspace %s: %w", h.Workspace, err), "pass the directory to copy with --workspace DIR")
	}
	h.reportSkipped(ctx, transfer.Place{Dir: h.Workspace})
	return began, func(stuck bool) error {
		if !stuck {
			return own.Clear()
		}
		err := kept.TakeBase(run, own)
		if err == nil {
			h.p.Line("original copy of %s: %s", h.Workspace, kept.Base(run))
		}
		return err
	}, nil
}

// executeAgent runs the agent in a run of its own, so that its id is known and its sandboxes can be kept.
func (h *host) executeAgent(ctx context.Context, name string, input map[string]any) error {
	h.onTool = h.p.tool
	run := session.Run{Namespace: session.NamespaceAgent, ID: session.NewRunID()}
	want := h.docs[name].Outputs()
	if err := h.checkHome(want, h.Workspace); err != nil {
		return err
	}
	base := session.Request{OnPull: h.p.Pull, Retention: h.retention()}
	began, drop, err := h.agentWorkspace(ctx, run.ID)
	if err != nil {
		return err
	}
	if began != nil {
		base = began.Into(base)
	}
	ctx = session.WithBase(session.WithRun(ctx, run), base)
	h.keepTrace(run.ID)
	h.p.Line("run %s started: agent %s", run.ID, name)
	h.p.Status("agent " + name)
	res, runErr := h.run(ctx, name, input)
	h.p.Status("")
	home, err := h.collectAgent(ctx, name, run, want, began)
	home.succeeded = runErr == nil && err == nil
	if home.stuck {
		err = errors.Join(err, h.leave(ctx, run, ""))
	} else {
		// The end of the manager leaves what the run's own end keeps, and nothing else.
		err = errors.Join(err, h.m.CloseScope(context.WithoutCancel(ctx), run.Scope()))
	}
	err = errors.Join(runErr, err, drop(home.stuck))
	h.showKept(ctx, run.ID)
	err = runError(err)
	if runErr == nil || res.Text != "" { // the user has paid for the answer
		err = errors.Join(err, h.printAgent(name, res, home))
	}
	if home.stuck {
		return err
	}
	return errors.Join(err, h.bringHome(home))
}

// printAgent prints the answer of an agent.
func (h *host) printAgent(name string, res tools.AgentResult, home homecoming) error {
	out := agentOutput{
		Agent: name, RunID: home.run, Model: res.Model, Text: res.Text, Output: res.Output, Turns: res.Turns,
		ToolCalls: res.ToolCalls, InputTokens: res.InputTokens, OutputTokens: res.OutputTokens,
		Outputs: slices.Sorted(maps.Keys(home.Outputs)), Executor: newExecutorOutput(res.Executor),
	}
	if home.Patch != nil {
		stat := home.Patch.Stat()
		out.Patch = &stat
	}
	return h.print(out, func(w io.Writer) error {
		if res.Output != nil {
			return writeLines(w, "", res.Output)
		}
		return writeLines(w, "", res.Text)
	})
}
