package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/engines"
	"github.com/workcell-dev/workcell/internal/isolated"
	"github.com/workcell-dev/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

const (
	keepRuns    = 30 * 24 * time.Hour // how long the journals of finished runs are kept
	cancelEvery = time.Second         // how often a run looks whether somebody asked for its end
)

func newRunsCmd(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "runs",
		Short: "List, show, resume and cancel workflow runs",
		Long: `List, show, resume and cancel workflow runs.

Every run of ` + "`workcell run`" + ` has a journal in the state directory. One whose process died is interrupted: it can be
resumed, or cancelled, which removes its sandboxes. The journals of finished runs are kept for 30 days.`,
	}, newRunsLsCmd(a), newRunsShowCmd(a), newRunsResumeCmd(a), newRunsCancelCmd(a))
}

// journalled returns what a command runs with the journals of runs. Nothing else is needed to look at them.
func (a *app) journalled(fn func(ctx context.Context, j *sqlitejournal.Journal, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		j, err := a.openJournal(cmd.Context())
		if err != nil {
			return err
		}
		defer j.Close() // nothing that was acknowledged can be lost
		return fn(cmd.Context(), j, args)
	}
}

// runNote is what the journal keeps of a run for the command that resumes it. Paths are absolute.
type runNote struct {
	Workflow     string   `json:"workflow"`
	Agents       string   `json:"agents,omitempty"`
	Workspace    string   `json:"workspace,omitempty"`
	Model        string   `json:"model,omitempty"`
	TraceContent bool     `json:"trace_content,omitempty"`
	Backend      string   `json:"backend"`
	Engine       string   `json:"engine"`
	MapImage     []string `json:"map_image,omitempty"`
	AllowImage   []string `json:"allow_image,omitempty"`
	Keep         bool     `json:"keep,omitempty"`
}

// note describes how the run was started. The backend is the one that was taken, whatever would be taken later.
func (o *runOptions) note(a *app, m *session.Manager, path string) (string, error) {
	n := runNote{
		Workflow: path, Agents: o.agents, Workspace: o.workspace, Model: a.model, TraceContent: a.traceContent,
		Backend: engines.NameOf(m.Backend()), Engine: a.engines().ID(engines.NameOf(m.Backend())),
		MapImage: a.mapped, AllowImage: a.allowed, Keep: o.keep,
	}
	var errs []error
	absolute := func(path *string) {
		if *path != "" {
			abs, err := filepath.Abs(*path)
			*path, errs = abs, append(errs, err)
		}
	}
	absolute(&n.Workflow)
	absolute(&n.Agents)
	absolute(&n.Workspace)
	if script, ok := scriptOf(a.model); ok {
		absolute(&script)
		n.Model = scripted.Provider + "/" + script
	}
	raw, err := json.Marshal(n)
	return string(raw), errors.Join(append(errs, err)...)
}

// restore makes the flags those that the run was started with.
func (n runNote) restore(a *app) *runOptions {
	a.backend, a.mapped, a.allowed, a.model, a.traceContent = n.Backend, n.MapImage, n.AllowImage, n.Model, n.TraceContent
	return &runOptions{agents: n.Agents, workspace: n.Workspace, keep: n.Keep}
}

// awaitCancel ends a run when its cancellation is asked for.
func awaitCancel(ctx context.Context, j *sqlitejournal.Journal, runID string, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(cancelEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if r, err := j.Run(ctx, runID); err == nil && r.Cancel {
			cancel(errors.New("cancelled by `workcell runs cancel`"))
			return
		}
	}
}

// States of runs, besides the outcomes of finished ones.
const (
	runRunning     = "running"
	runInterrupted = "interrupted"
	runUnknown     = "unknown" // the file of its process cannot be looked at
)

// runState returns where a run is.
func runState(j *sqlitejournal.Journal, r sqlitejournal.Run) (string, error) {
	if !r.Finished.IsZero() {
		return string(r.Outcome), nil
	}
	lives, err := j.Lives(r.Owner)
	if lives {
		return runRunning, err
	}
	return runInterrupted, err
}

// findRun returns a run by its id, or by the beginning of it when only one has that.
func findRun(ctx context.Context, j *sqlitejournal.Journal, id string) (sqlitejournal.Run, error) {
	r, err := j.Run(ctx, id)
	if !errors.Is(err, backend.ErrNotFound) {
		return r, err
	}
	runs, err := j.Runs(ctx, maxRuns)
	if err != nil {
		return r, err
	}
	var found []sqlitejournal.Run
	for _, r := range runs {
		if abbreviates(id, r.ID) {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		return r, fail(exitNotFound, fmt.Errorf("no run has the id %q", id), "`workcell runs ls` lists the runs there are")
	}
	return found[0], nil
}

// readNote returns how a run was started.
func readNote(r sqlitejournal.Run) (n runNote, err error) {
	if err := json.Unmarshal([]byte(r.Note), &n); err != nil || n.Workflow == "" {
		return n, fail(exitFailed, fmt.Errorf("run %s was not started by `workcell run`", r.ID), "")
	}
	return n, nil
}

// interrupted returns what is needed to resume a run whose process died, or why that cannot be done.
func interrupted(j *sqlitejournal.Journal, r sqlitejournal.Run) (runNote, error) {
	switch state, err := runState(j, r); {
	case err != nil:
		return runNote{}, err
	case state == runRunning:
		return runNote{}, fail(exitConflict, fmt.Errorf("run %s is under way in another process", r.ID), "`workcell runs cancel "+r.ID+"` asks it to stop")
	case state != runInterrupted:
		return runNote{}, fail(exitConflict, fmt.Errorf("run %s: %w: %s", r.ID, workflow.ErrFinished, state), "")
	}
	return readNote(r)
}

// take makes a run that was interrupted this process's own.
func take(ctx context.Context, j *sqlitejournal.Journal, m *session.Manager, r sqlitejournal.Run) error {
	err := j.Take(ctx, r.ID, r.Owner, m.Owner())
	if errors.Is(err, backend.ErrExists) || errors.Is(err, backend.ErrNotFound) {
		return fail(exitConflict, fmt.Errorf("another process was faster: %w", err), "`workcell runs show "+r.ID+"` says where it is")
	}
	return err
}

// checkEngine makes sure that a run's sandboxes are where its next process looks for them.
func (n runNote) checkEngine(a *app, m *session.Manager) error {
	if a.engines().ID(engines.NameOf(m.Backend())) == n.Engine {
		return nil
	}
	return fail(exitFailed, fmt.Errorf("the run's sandboxes are on another %s engine than the one that answers here", n.Backend),
		"set DOCKER_HOST, CONTAINERD_ADDRESS and the like as they were when the run began")
}

type runsResumeOptions struct{ fresh bool }

func newRunsResumeCmd(a *app) *cobra.Command {
	o := &runsResumeOptions{}
	cmd := a.verb(outputFlags, &cobra.Command{
		Use:   "resume RUN",
		Short: "Resume a run whose process died",
		Long: `Resume a run whose process died, with the flags that it was started with. Steps that finished are not run again;
the step that was under way is, from its beginning, and what it left running is ended. The run's sandboxes are adopted
with their files. When one of them is gone, the run is not resumed, unless --fresh-sandbox says that an empty one will do.`,
		Args: cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j *sqlitejournal.Journal, args []string) error {
			return o.run(ctx, a, j, args[0])
		}),
	})
	cmd.Flags().BoolVar(&o.fresh, "fresh-sandbox", false, "resume with an empty sandbox where the run's own is gone")
	return cmd
}

func (o *runsResumeOptions) run(ctx context.Context, a *app, j *sqlitejournal.Journal, id string) error {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return err
	}
	n, err := interrupted(j, r)
	if err != nil {
		return err
	}
	files := agentsFor(n.Workflow, n.Agents)
	wf, err := workflow.Load(n.Workflow, &workflow.LoadOptions{Agents: files.known})
	if err != nil {
		return fail(exitInvalid, err, "the file must be as it was when the run began; `workcell runs cancel "+r.ID+"` ends it")
	}
	if wf.Hash != r.Hash {
		return fail(exitInvalid, fmt.Errorf("%s: %w", n.Workflow, workflow.ErrChanged),
			"put back what it was, or end the run: workcell runs cancel "+r.ID)
	}
	opts := n.restore(a)
	return a.withHost(ctx, agentPaths(files, wf), func(ctx context.Context, h *host, m *session.Manager, p *progress) error {
		if err := n.checkEngine(a, m); err != nil {
			return err
		}
		entries, err := j.Entries(ctx, r.ID)
		if err != nil {
			return err
		}
		if err := o.checkSandboxes(ctx, m, r.ID, entries); err != nil {
			// They are gone too when another process resumed the run meanwhile, and ended it.
			if now, late := j.Run(ctx, r.ID); late == nil {
				if _, taken := interrupted(j, now); taken != nil {
					return taken
				}
			}
			return err
		}
		if err := take(ctx, j, m, r); err != nil {
			return err
		}
		h.resume(entries)
		return opts.execute(ctx, a, h, m, p, j, r.Note, func(ctx context.Context, e *workflow.Engine) (*workflow.Result, error) {
			return e.Resume(ctx, wf, entries)
		})
	})
}

// checkSandboxes makes sure that what the run's steps did in its sandboxes is still there. Sandboxes of isolated steps
// are closed with their steps.
func (o *runsResumeOptions) checkSandboxes(ctx context.Context, m *session.Manager, runID string, entries []workflow.Entry) error {
	if o.fresh {
		return nil
	}
	gone, err := m.Gone(ctx, session.Scope{Namespace: session.NamespaceWorkflow, ID: runID})
	if err != nil {
		return err
	}
	gone = slices.DeleteFunc(gone, func(k session.Key) bool { return isolated.Is(k.Name) })
	if len(gone) == 0 {
		return nil
	}
	names := make([]string, len(gone))
	for i, key := range gone {
		names[i] = key.Name
	}
	return fail(exitNotFound, fmt.Errorf("the files of run %s are gone: it had the sandbox %s, which was removed", runID, strings.Join(names, ", ")),
		"pass --fresh-sandbox to resume with an empty one, or end it: workcell runs cancel "+runID)
}

func newRunsCancelCmd(a *app) *cobra.Command {
	var wait time.Duration
	cmd := a.verb(outputFlags, &cobra.Command{
		Use:   "cancel RUN",
		Short: "End a run and remove its sandboxes",
		Long: `End a run and remove its sandboxes. A run that is under way in another process is asked to stop, as by Ctrl-C, and
waited for; one whose process died is ended here.`,
		Args: cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j *sqlitejournal.Journal, args []string) error {
			if wait < 0 {
				return usageError(fmt.Errorf("--wait %s is negative", wait), "as in --wait 5m")
			}
			return a.cancelRun(ctx, j, args[0], wait)
		}),
	})
	cmd.Flags().DurationVar(&wait, "wait", 3*time.Minute, "how long to wait for a run that was asked to stop")
	return cmd
}

func (a *app) cancelRun(ctx context.Context, j *sqlitejournal.Journal, id string, wait time.Duration) error {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return err
	}
	switch state, err := runState(j, r); {
	case err != nil:
		return err
	case state == runRunning:
		if err := askCancel(ctx, j, r.ID, wait); err != nil {
			return err
		}
	default: // also one that has finished, which is an error with its outcome
		if err := cancelDead(ctx, a, j, r); err != nil {
			return err
		}
	}
	err = a.showRun(ctx, j, r.ID)
	if errors.Is(err, sqlitejournal.ErrDamaged) {
		a.notice("run %s is cancelled; what it did cannot be shown: %v", r.ID, err)
		return nil
	}
	return err
}

// askCancel asks the process that runs a run to stop, and waits until it did. A process that dies meanwhile leaves the run
// interrupted.
func askCancel(ctx context.Context, j *sqlitejournal.Journal, id string, wait time.Duration) error {
	if err := j.AskCancel(ctx, id); err != nil {
		return err
	}
	late, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ticker := time.NewTicker(cancelEvery / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-late.Done():
			return fail(exitFailed, fmt.Errorf("run %s was asked to stop and is still under way: %w", id, late.Err()),
				"a process that is stopped cannot end its run: once it continues, or is killed, `workcell runs cancel "+id+"` again")
		}
		r, err := j.Run(ctx, id)
		if err != nil {
			return err
		}
		switch state, err := runState(j, r); {
		case err != nil:
			return err
		case state == runInterrupted:
			return fail(exitFailed, fmt.Errorf("the process of run %s died before the run had ended", id), "once more: workcell runs cancel "+id)
		case state != runRunning:
			return nil
		}
	}
}

// cancelDead ends a run that was interrupted.
func cancelDead(ctx context.Context, a *app, j *sqlitejournal.Journal, r sqlitejournal.Run) error {
	n, err := interrupted(j, r)
	if err != nil {
		return err
	}
	a.backend = n.Backend
	return a.withManager(ctx, stateNeeded, func(ctx context.Context, m *session.Manager) error {
		if err := n.checkEngine(a, m); err != nil {
			return err
		}
		if err := take(ctx, j, m, r); err != nil {
			return err
		}
		// Its end is recorded when nothing is left of it, as that of a run that ends by itself.
		if _, err := m.RemoveScope(ctx, session.Scope{Namespace: session.NamespaceWorkflow, ID: r.ID}); err != nil {
			return err
		}
		return j.Finish(ctx, r.ID, workflow.Cancelled, &workflow.Error{Code: workflow.CodeCancelled, Message: "cancelled after its process had died"})
	})
}
