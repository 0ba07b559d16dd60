package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// runSpec configures a run.
type runSpec struct {
	*Program
	note   string
	before patch.Stamps // files in --out before the run
	show   showResult
	do     func(context.Context, *workflow.Engine) (*workflow.Result, error) // starts or resumes the run
}

// showResult prints the result of a run, or the agent's answer if the workflow is a single agent. err is the run's
// error.
type showResult func(wf *workflow.Workflow, res *workflow.Result, got Answer, err error) error

// Run runs a workflow and collects the results.
func (a *App) Run(ctx context.Context, p *Program, input map[string]any, show showResult) error {
	workspace := a.place(p.Workflow)
	dir, before, err := a.checkHome(p.Outputs(), workspace.Dir)
	_, configErr := a.Config()
	if err = cmp.Or(err, configErr, a.CheckModel(), a.checkWorkspace(ctx, p.Workflow, workspace)); err != nil {
		return err
	}
	flags := a.opts.runFlags
	flags.Out = dir
	a = a.withFlags(flags)
	j, err := a.OpenJournal(ctx)
	if err != nil {
		return err
	}
	defer j.Close() // every entry was written to disk before the run continued
	a.pruneRuns(ctx, j)
	return a.withHost(ctx, Use{}, p.Files, true, func(ctx context.Context, h *host) error {
		note, err := h.note(p.Path)
		if err != nil {
			return err
		}
		return h.execute(ctx, j, runSpec{
			Program: p, note: note, before: before, show: show,
			do: func(ctx context.Context, e *workflow.Engine) (*workflow.Result, error) {
				return e.Run(ctx, p.Workflow, input)
			},
		})
	})
}

// execute runs a workflow until it ends or is canceled.
func (h *host) execute(ctx context.Context, j runstore.Store, spec runSpec) error {
	h.approve = h.approver(j, h.m.Owner(), h.p.Approver(), "the user at the terminal", h.p.Line)
	web, err := h.Services()
	if err != nil {
		return err
	}
	if err := spec.CheckServices(web.Problems); err != nil {
		return Fail(ExitInvalid, err, "")
	}
	answered := h.answers(spec.Workflow)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go state.AwaitLost(ctx, h.m.Records, h.m.Owner(), func(why error) { // ends with ctx
		cancel(fmt.Errorf("%w: %w", workflow.ErrInterrupted, why))
	})
	res, err := spec.do(ctx, workflow.NewEngine(h.m.Manager, h, &workflow.Options{
		Workspace: h.opts.Workspace, Retention: h.retention(), OnPull: h.p.Pull, Logger: h.Logger(),
		Journal: j.For(h.m.Owner(), spec.note), Results: string(h.m.runFiles()), OnKept: spec.onKept,
		OnEvent: func(ev workflow.Event) {
			h.p.Event(ev)
			h.keepNote(ev, spec.note)
			if ev.Kind == workflow.EventRunStarted || ev.Kind == workflow.EventRunResumed {
				h.keepTrace(ev.RunID)
				go runstore.AwaitCancel(ctx, j, ev.RunID, func() { // ends with ctx
					cancel(errors.New("canceled by `workcell runs cancel`"))
				})
			}
		},
	}))
	if res == nil {
		return runError(err)
	}
	h.showKept(ctx, res.RunID)
	got := answered()
	if got.err != nil && spec.Agent() != nil {
		err = got.err // this error does not contain the step
	}
	if err != nil && got.Turns > 0 {
		h.p.Line("used: %s", got.used())
	}
	shown := spec.show(spec.Workflow, res, got, err) // if it fails, the results must still be kept
	if res.Unfinished != nil {
		if cause := context.Cause(ctx); errors.Is(cause, workflow.ErrInterrupted) {
			err = cause
		}
		return errors.Join(runError(err), shown, h.leave(ctx, spec.Checkpoints, res))
	}
	_ = h.m.runFiles().RemoveBegun(res.RunID, time.Now()) // if this fails, the next command removes it
	return errors.Join(runError(err), shown, res.Cleanup, h.bringHome(res, spec.before, err == nil))
}

// keepNote stores the note of a new run on this host, if the journal is in a database.
func (h *host) keepNote(ev workflow.Event, note string) {
	if ev.Kind != workflow.EventRunStarted || h.m.place.URL == "" {
		return
	}
	if err := h.m.runFiles().KeepNote(ev.RunID, note); err != nil {
		h.p.Line("run %s cannot be resumed: %v", ev.RunID, err)
	}
}

// place returns the directory to copy into a workflow's sandboxes. Only the flag accepts any directory.
func (a *App) place(wf *workflow.Workflow) transfer.Place {
	if a.opts.Workspace != "" {
		return transfer.Place{Dir: a.opts.Workspace}
	}
	return wf.Workspace()
}

// checkWorkspace returns an error if a workspace cannot be copied into sandboxes. It prints the links and special files
// that are not copied.
func (a *App) checkWorkspace(ctx context.Context, wf *workflow.Workflow, at transfer.Place) error {
	if at.Dir == "" {
		return nil
	}
	skipped, err := transfer.CheckWorkspace(ctx, at)
	if err != nil {
		const hint = "pass the directory to copy with --workspace DIR"
		if a.opts.Workspace != "" {
			return UsageError(fmt.Errorf("--workspace %s: %w", at.Dir, err), hint)
		}
		return Fail(ExitInvalid, cmp.Or(wf.CheckWorkspace(ctx), err), hint) // the former names the line of the file
	}
	if len(skipped) == 0 {
		return nil
	}
	names := skipped[:min(len(skipped), 3)]
	more := ""
	if rest := len(skipped) - len(names); rest > 0 {
		more = fmt.Sprintf(" and %d more", rest)
	}
	a.Notice("links and special files in %s are not copied: %s%s", at.Dir, strings.Join(names, ", "), more)
	return nil
}

// retention returns how long the sandboxes of a run are kept after the end.
func (h *host) retention() time.Duration {
	if h.opts.Keep {
		return h.m.conf.KeepSandboxes
	}
	return 0
}

// runError sets the exit codes of failures not caused by the run itself.
func runError(err error) error {
	var we *workflow.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, workflow.ErrInvalidInput):
		return Fail(ExitInvalid, err, "pass --input NAME=VALUE or --input-file FILE")
	case errors.As(err, &we) && we.Code == workflow.CodeInput && we.Step == "": // the run never started
		return Fail(ExitInvalid, err, "pass the directory to copy with --workspace DIR")
	case errors.Is(err, backend.ErrUnavailable), hint.Of(err) != nil:
		return err
	default:
		_, hint := classOf(err)
		if errors.Is(err, backend.ErrNotFound) {
			hint = "" // the missing object was not a sandbox specified by the user
		}
		return Fail(ExitFailed, err, hint)
	}
}

// showKept lists the kept sandboxes of a run.
func (h *host) showKept(ctx context.Context, run string) {
	if !h.opts.Keep {
		return
	}
	list, err := h.sandboxesOf(ctx, run)
	if err != nil {
		h.p.Line("cannot list the kept sandboxes: %v", err)
		return
	}
	for _, s := range list {
		h.p.Line("kept sandbox %s (%s)", s.ID, s.Key)
	}
	h.p.Line("to remove them, run: workcell sandbox rm %s", run)
}

// sandboxesOf returns the sandboxes of a run, even if ctx is done.
func (h *host) sandboxesOf(ctx context.Context, run string) ([]session.Info, error) {
	list, err := h.m.List(context.WithoutCancel(ctx))
	return slices.DeleteFunc(list, func(s session.Info) bool { return s.Run != run }), err
}

// Answer is the latest answer or failure of a run's agents, with the totals of all agents.
type Answer struct {
	tools.AgentResult
	usd float64
	err error
}

// used returns the totals for the user.
func (a Answer) used() string {
	cost := ""
	if a.usd > 0 {
		cost = fmt.Sprintf(", $%.4f", a.usd)
	}
	return fmt.Sprintf("%s, %s, %d input and %d output tokens%s", Counted(a.Turns, "turn"),
		Counted(a.ToolCalls, "tool call"), a.InputTokens, a.OutputTokens, cost)
}

// answers makes the host store the agents' answers. The returned function returns an empty Answer if no agent ran in
// this process.
func (h *host) answers(wf *workflow.Workflow) func() Answer {
	if wf.Agent() != nil && h.p != nil {
		h.p.Kind("agent")
	}
	var mu sync.Mutex // guards all
	var all Answer
	h.onReply = func(res tools.AgentResult, err error) {
		mu.Lock()
		defer mu.Unlock()
		res.Turns, res.ToolCalls = all.Turns+res.Turns, all.ToolCalls+res.ToolCalls
		res.InputTokens, res.OutputTokens = all.InputTokens+res.InputTokens, all.OutputTokens+res.OutputTokens
		if cost := res.Executor.Cost(); cost != nil {
			all.usd += *cost
		}
		all.AgentResult, all.err = res, err
	}
	return func() Answer {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// leave keeps the sandboxes of a run whose results are not collected, and prints how to continue.
func (h *host) leave(ctx context.Context, checkpoints bool, res *workflow.Result) error {
	runID := res.RunID
	if h.opts.Apply {
		h.p.Line("--apply: changes not applied because the results were not collected")
	}
	list, err := h.sandboxesOf(ctx, runID)
	if err != nil {
		h.p.Line("the results of run %s are still in its sandbox, which cannot be listed: %v", runID, err)
	}
	for _, s := range list {
		h.p.Line("sandbox %s still has the results of run %s; to copy them, run: workcell sandbox cp %[1]s:. DIR",
			s.ID, runID)
	}
	if failed := res.Error; failed != nil && checkpoints {
		h.p.Line("after you fix the problem, return to a step with: %s", ReturnTo(runID, failed.Step))
		h.p.Line("to end the run, use: workcell runs cancel %s", runID)
	} else {
		h.p.Line("after you fix the problem, collect the results with: workcell runs resume %s", runID)
	}
	return h.m.Detach(context.WithoutCancel(ctx))
}

// ReturnTo returns the command to restart a run from the step at path.
func ReturnTo(runID, path string) string {
	step, _, _ := strings.Cut(strings.NewReplacer(".", "/", "[", "/").Replace(cmp.Or(path, "STEP")), "/")
	return fmt.Sprintf("workcell runs resume %s --from %s", hint.Quote(runID), hint.Quote(step))
}
