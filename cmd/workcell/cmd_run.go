package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

// keepFor is how long --keep keeps the sandboxes of a run, unless somebody removes them before.
const keepFor = 7 * 24 * time.Hour

type runOptions struct {
	engine    engineFlags
	images    imageFlags
	models    modelFlags
	input     inputFlags
	out       outputFlag
	agents    string
	workspace string
	keep      bool
}

func newRunCmd(a *app) *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use:   "run WORKFLOW.yaml [flags]",
		Short: "Run a workflow",
		Long: `Run a workflow. Its agents share the run's sandbox, which is removed when the run ends, however it ends.

Every step is written to the run's journal before the next one begins. A run whose process died can be gone on with, in
the same sandbox, by ` + "`workcell runs resume`" + ` as long as the sandbox was not idle for too long.

Agents are looked for in agents/ beside or above the workflow, or in --agents. Progress goes to standard error, the
result to standard output.`,
		Example: "  workcell run examples/workflows/debug-and-fix.yaml\n" +
			"  workcell run examples/workflows/debug-and-fix.yaml --workspace ~/project --model anthropic/claude-sonnet-4-5\n" +
			"  workcell run examples/workflows/debug-and-fix.yaml --model scripted/examples/workflows/scripts/debug-and-fix.yaml",
		Args: runArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), a, args[0]) },
	}
	o.engine.addTo(cmd)
	o.images.addTo(cmd)
	o.models.addTo(cmd)
	o.input.addTo(cmd)
	o.out.addTo(cmd)
	f := cmd.Flags()
	f.StringVar(&o.agents, "agents", "", "directory of the agents (default agents/ beside or above the workflow)")
	f.StringVar(&o.workspace, "workspace", "", "directory to copy into the run's sandboxes, in place of the workflow's workspace:")
	f.BoolVar(&o.keep, "keep", false, "leave the run's sandboxes for workcell sessions exec and rm")
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
	input, err := o.input.read(a.stdin, wf.ParseInput)
	if err != nil {
		return err
	}
	for _, notice := range strangeInputs(input, wf.InputSchema()) {
		fmt.Fprintf(a.stderr, "workcell: notice: %s\n", sanitize.Line(notice))
	}
	if dir := cmp.Or(o.workspace, wf.Workspace()); dir != "" {
		reportSkipped(ctx, a.stderr, dir)
	}
	j, err := a.openJournal(ctx)
	if err != nil {
		return err
	}
	defer j.Close() // every entry was on the disk before the run went on
	if _, err := j.Prune(ctx, time.Now().Add(-keepRuns)); err != nil {
		a.logger().Warn("old runs cannot be forgotten", "error", err)
	}
	return a.withHost(ctx, o.engine, o.images, o.models, agentPaths(files, wf), func(ctx context.Context, h *host, m *session.Manager, p *progress) error {
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
func agentPaths(files agentFiles, workflows ...*workflow.Workflow) map[string]string {
	out := map[string]string{}
	for _, wf := range workflows {
		for _, name := range wf.Agents() {
			if path, err := files.find(name); err == nil {
				out[name] = path
			}
		}
	}
	return out
}

// withHost runs fn with agents, an engine and progress, and ends them all: sandboxes that are not kept are closed and
// traces are sent, whether or not ctx has ended.
func (a *app) withHost(ctx context.Context, e engineFlags, images imageFlags, models modelFlags, files map[string]string,
	fn func(context.Context, *host, *session.Manager, *progress) error) (err error) {
	catchBrokenPipes()
	ctx, tel := a.startTracing(ctx, models.traceContent)
	defer func() {
		tel.Close(ctx)
		if id := tel.TraceID(); id != "" {
			fmt.Fprintf(a.stderr, "workcell: trace: %s\n", id)
		}
	}()
	m, done, err := a.openManager(ctx, e, images, stateNeeded)
	if err != nil {
		return err
	}
	defer done()
	defer func() { err = errors.Join(err, m.Close(context.WithoutCancel(ctx))) }()
	h, err := a.newHost(ctx, m, files, models)
	if err != nil {
		return err
	}
	p := newProgress(a.stderr)
	defer p.Close()
	return fn(ctx, h, m, p)
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
	if werr := o.out.write(a.stdout, res, func(w io.Writer) error { return resultTable(w, res) }); werr != nil {
		return errors.Join(err, werr)
	}
	return errors.Join(runError(err), res.Cleanup)
}

// runError gives the failures that are not the run's own fault their exit codes.
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
	rows := [][]string{
		{"outcome", string(res.Outcome)},
		{"run", res.RunID},
		{"workflow", res.Workflow},
		{"steps", fmt.Sprint(res.Steps)},
		{"duration", short(res.Duration)},
	}
	for _, r := range rows {
		fmt.Fprintf(w, "%-10s%s\n", r[0], sanitize.Line(r[1]))
	}
	if res.Output == nil {
		return nil
	}
	fmt.Fprintln(w, "output:")
	return writeLines(w, "  ", res.Output)
}
