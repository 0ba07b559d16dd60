package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/engines"
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
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List, show, resume and cancel workflow runs",
		Long: `List, show, resume and cancel workflow runs.

Every run of ` + "`workcell run`" + ` has a journal in the state directory. One whose process died is interrupted: it can be
resumed, or cancelled, which removes its sandboxes. The journals of finished runs are kept for 30 days.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRunsLsCmd(a), newRunsShowCmd(a), newRunsResumeCmd(a), newRunsCancelCmd(a))
	return cmd
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
		Workflow: path, Agents: o.agents, Workspace: o.workspace, Model: o.models.model, TraceContent: o.models.traceContent,
		Engine: a.engines().ID(engines.NameOf(m.Backend())), MapImage: o.images.mapped, AllowImage: o.images.allowed, Keep: o.keep,
	}
	if namer, ok := m.Backend().(backend.Namer); ok {
		n.Backend = namer.Name()
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
	if script, ok := o.models.script(); ok {
		absolute(&script)
		n.Model = scripted.Provider + "/" + script
	}
	raw, err := json.Marshal(n)
	return string(raw), errors.Join(append(errs, err)...)
}

// options returns the flags that the run was started with.
func (n runNote) options() *runOptions {
	return &runOptions{
		engine: engineFlags{backend: n.Backend}, images: imageFlags{mapped: n.MapImage, allowed: n.AllowImage},
		models: modelFlags{model: n.Model, traceContent: n.TraceContent}, agents: n.Agents, workspace: n.Workspace, keep: n.Keep,
	}
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
