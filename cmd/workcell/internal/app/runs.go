package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/engines"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// runNote is the journal's note on a run, for resuming it. Paths are absolute.
type runNote struct {
	runFlags
	Workflow string `json:"workflow"`
	Engine   string `json:"engine"`
	Detached bool   `json:"detached,omitempty"` // from the queue, which has the run's files
}

// note returns the note on the run. It contains the selected backend, because auto might select another backend later.
func (h *host) note(path string) (string, error) {
	n, defaults := runNote{runFlags: h.opts.runFlags, Workflow: path, Engine: h.m.Engine}, h.defaults(h.m.conf)
	n.Backend, n.TraceContent, n.Defaults = h.m.Backend().Name(), h.m.conf.TraceContent, &defaults
	script, isScript := scriptOf(n.Model)
	err := absolute(&n.Workflow, &n.Agents, &n.Workspace, &n.Out, &n.Audit, &n.Prices, &n.HostTools, &script)
	if err == nil && n.Out != "" {
		n.Out, err = WithoutLinks(n.Out) // the path of the working directory may have links
	}
	if err != nil {
		return "", err
	}
	if isScript {
		n.Model = scripted.Provider + "/" + script
	}
	raw, err := json.Marshal(n)
	return string(raw), err
}

// absolute makes nonempty paths absolute.
func absolute(paths ...*string) error {
	var errs []error
	for _, path := range paths {
		if *path != "" {
			abs, err := filepath.Abs(*path)
			*path, errs = abs, append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// States of runs, in addition to the outcomes of finished runs.
const (
	RunRunning     = "running"
	RunInterrupted = "interrupted"
	RunQueued      = "queued"  // no process has taken it yet
	runUnknown     = "unknown" // the owner's lock file is not accessible
)

// RunState returns the state of a run.
func RunState(ctx context.Context, j runstore.Store, r runstore.Run) (string, error) {
	if !r.Finished.IsZero() {
		return string(r.Outcome), nil
	}
	if r.Owner == "" {
		return RunQueued, nil
	}
	lives, err := j.Lives(ctx, r.Owner)
	if lives {
		return RunRunning, err
	}
	return RunInterrupted, err
}

// AwaitState waits until the state of a run is not one of the given states. It checks after each change and at
// intervals. If ctx ends first, AwaitState returns an error.
func AwaitState(
	ctx context.Context, j runstore.Store, id string, every time.Duration, during ...string,
) (r runstore.Run, state string, err error) {
	if !runstore.Await(ctx, j, id, every, func(now runstore.Run, failed error) bool {
		if r, err = now, failed; err == nil {
			state, err = RunState(ctx, j, r)
		}
		return err != nil || !slices.Contains(during, state)
	}) {
		err = ctx.Err()
	}
	return r, state, err
}

// FindRun returns a run by id or by an unambiguous id prefix.
func FindRun(ctx context.Context, j runstore.Store, id string) (runstore.Run, error) {
	r, err := j.Run(ctx, id)
	if !errors.Is(err, backend.ErrNotFound) {
		return r, err
	}
	page, err := j.Runs(ctx, runstore.Query{Limit: MaxRuns, Text: id})
	if err != nil {
		return r, err
	}
	found := slices.DeleteFunc(page.Runs, func(r runstore.Run) bool { return !abbreviates(id, r.ID) })
	switch len(found) {
	case 0:
		return r, Fail(ExitNotFound, fmt.Errorf("run %q not found", id), "run `workcell runs ls` to list runs")
	case 1:
		return found[0], nil
	}
	return r, UsageError(fmt.Errorf("%q matches %d runs", id, len(found)), "use more characters of the run ID")
}

// readNote returns the note on a run.
func readNote(r runstore.Run) (n runNote, err error) {
	if err := json.Unmarshal([]byte(r.Note), &n); err != nil || n.Workflow == "" {
		return n, Fail(ExitFailed, fmt.Errorf("run %s was not started by `workcell run`", r.ID), "")
	}
	return n, nil
}

// IsDetached reports whether a run is or was in the queue. Runs of other programs are not.
func IsDetached(r runstore.Run) bool {
	n, err := readNote(r)
	return err == nil && n.Detached
}

// checkNote returns an error if the note refers to files and programs of this host but was not written on this host. A
// writer of the database must not choose local files, and must not decide whether a local run was detached.
func (a *App) checkNote(r runstore.Run, n runNote) error {
	place, err := a.State()
	if err != nil || place.URL == "" {
		return err
	}
	again := "or run `workcell runs cancel " + r.ID + "` and start a new run with the same flags"
	own, err := runsIn(place.Dir).Notes(r.ID)
	if errors.Is(err, fs.ErrNotExist) {
		if n.Detached { // a detached run uses only the files in the queue
			return nil
		}
		return Fail(ExitFailed, fmt.Errorf("run %s was not started with this state directory", r.ID),
			"resume it on the host where it started, with the same --state-dir, "+again)
	}
	if err != nil || slices.Contains(own, r.Note) {
		return err
	}
	var here, there map[string]any
	if err := errors.Join(json.Unmarshal([]byte(own[0]), &here), json.Unmarshal([]byte(r.Note), &there)); err != nil {
		return err
	}
	all := map[string]any{}
	maps.Copy(all, here)
	maps.Copy(all, there)
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(key string) bool {
		return reflect.DeepEqual(here[key], there[key])
	})
	err = fmt.Errorf("the flags of run %s have changed in the database: %s", r.ID, strings.Join(keys, ", "))
	return Fail(ExitFailed, err, "restore the run's original flags in the database, "+again)
}

// interrupted returns the note on a run whose process died. If the run cannot be resumed, it returns an error with the
// reason.
func interrupted(ctx context.Context, j runstore.Store, r runstore.Run) (runNote, error) {
	switch state, err := RunState(ctx, j, r); {
	case err != nil:
		return runNote{}, err
	case state == RunRunning:
		return runNote{}, Fail(ExitConflict, fmt.Errorf("run %s is running in another process", r.ID),
			"to stop it, run `workcell runs cancel "+r.ID+"`; if its process was killed, wait 30 s and try again")
	case state != RunInterrupted && state != RunQueued:
		return runNote{}, Fail(ExitConflict, fmt.Errorf("run %s: %w: %s", r.ID, workflow.ErrFinished, state), "")
	}
	return readNote(r)
}

// take transfers the ownership of an interrupted run to this process.
func take(ctx context.Context, j runstore.Store, m *Manager, r runstore.Run) error {
	err := j.Take(ctx, r.ID, r.Owner, m.Owner())
	if errors.Is(err, backend.ErrExists) || errors.Is(err, backend.ErrNotFound) {
		return Fail(ExitConflict, fmt.Errorf("another process took the run: %w", err),
			"to see its state, run `workcell runs show "+r.ID+"`")
	}
	return err
}

// checkEngine checks whether the engine has the run's sandboxes.
func (n runNote) checkEngine(ctx context.Context, m *Manager, run string) error {
	if n.Detached {
		if has := m.Backend().Name(); n.Backend != "" && n.Backend != engines.Auto && n.Backend != has {
			err := fmt.Errorf("the run requires backend %s, but this host uses %s", n.Backend, has)
			return Fail(ExitInvalid, err, "set WORKCELL_BACKEND="+n.Backend)
		}
		return m.checkRecords(ctx, run)
	}
	if m.Engine == n.Engine {
		return nil
	}
	return Fail(ExitFailed, fmt.Errorf("the run's sandboxes are on another %s engine", n.Backend),
		"set DOCKER_HOST, CONTAINERD_ADDRESS, and similar variables to their values at the start of the run")
}

// Resume resumes a run. from is a step to return to, or empty. If fresh is set, missing sandboxes are replaced by empty
// sandboxes.
func (a *App) Resume(ctx context.Context, j runstore.Store, id, from string, fresh bool, show showResult) error {
	r, n, err := a.resumable(ctx, j, id)
	if err != nil {
		return err
	}
	var p *Program
	if n.Detached {
		p, err = a.fetchProgram(ctx, r, &n)
	} else {
		p, err = LoadProgram(n.Workflow, n.Agents)
	}
	if err == nil && p.close != nil {
		defer p.close()
	}
	if err == nil && p.Hash != r.Hash {
		err = fmt.Errorf("%s: %w", n.Workflow, workflow.ErrChanged)
	}
	switch code, _ := Classify(err); {
	case code == ExitInvalid, errors.Is(err, workflow.ErrChanged):
		err = Fail(ExitInvalid, err, "restore the original file, or cancel the run: workcell runs cancel "+r.ID)
	case code == ExitNotFound:
		err = Fail(code, err, "cancel the run: workcell runs cancel "+r.ID)
	}
	if err != nil {
		return err
	}
	flags := n.runFlags
	if n.Detached {
		flags.Backend = "" // this host selects the backend
	}
	return a.withFlags(flags).withHost(ctx, Use{}, p.Files, true, func(ctx context.Context, h *host) error {
		if err := n.checkEngine(ctx, h.m, r.ID); err != nil {
			return err
		}
		entries, err := j.Entries(ctx, r.ID)
		if err != nil {
			return err
		}
		if err := checkSandboxes(ctx, h.m, r.ID); err != nil && !fresh {
			// The sandboxes are also gone if another process has resumed and finished the run since.
			if now, late := j.Run(ctx, r.ID); late == nil {
				if _, taken := interrupted(ctx, j, now); taken != nil {
					return taken
				}
			}
			return err
		}
		kept := workflow.History(entries)
		if from != "" {
			if kept, _, err = workflow.Before(entries, from); err != nil {
				return Fail(ExitFailed, err,
					"to list the steps, run `workcell runs show "+r.ID+"`; --from requires checkpoints: true in the workflow")
			}
		}
		if err := take(ctx, j, h.m, r); err != nil {
			return err
		}
		h.resume(kept)
		return h.execute(ctx, j, runSpec{
			Program: p, note: r.Note, show: show,
			do: func(ctx context.Context, e *workflow.Engine) (*workflow.Result, error) {
				if from != "" {
					return e.ResumeFrom(ctx, p.Workflow, entries, from)
				}
				return e.Resume(ctx, p.Workflow, entries)
			},
		})
	})
}

// HandOver adds an interrupted run to the queue.
func (a *App) HandOver(ctx context.Context, j runstore.Store, id string) (runstore.Run, error) {
	r, n, err := a.resumable(ctx, j, id)
	if err == nil {
		err = a.enqueue(ctx, r, n)
	}
	return r, err
}

// resumable returns an interrupted or queued run and the note. If the run cannot be resumed on this host, it returns an
// error with the reason.
func (a *App) resumable(ctx context.Context, j runstore.Store, id string) (runstore.Run, runNote, error) {
	r, err := FindRun(ctx, j, id)
	if err != nil {
		return r, runNote{}, err
	}
	n, err := interrupted(ctx, j, r)
	if err == nil {
		err = a.checkNote(r, n)
	}
	return r, n, err
}

// scopeOf returns the scope of a run's sandboxes.
func scopeOf(runID string) record.Scope {
	return record.Scope{Namespace: record.NamespaceWorkflow, ID: runID}
}

// errFilesGone is wrapped in the error of checkSandboxes if the run cannot be resumed in the previous state.
var errFilesGone = errors.New("are gone")

// checkSandboxes checks whether the run's sandboxes still contain the work of the steps. If an isolated sandbox is
// gone, the engine makes a step continuing in it fail.
func checkSandboxes(ctx context.Context, m *Manager, runID string) error {
	gone, _, err := m.Gone(ctx, scopeOf(runID))
	if err != nil {
		return err
	}
	var names []string
	for _, key := range gone {
		if !rules.IsIsolated(key.Name) {
			names = append(names, key.Name)
		}
	}
	if names == nil {
		return nil
	}
	return Fail(ExitNotFound,
		fmt.Errorf("the files of run %s %w: sandbox %s was removed", runID, errFilesGone, strings.Join(names, ", ")),
		"pass --fresh-sandbox to continue with an empty sandbox, or cancel the run: workcell runs cancel "+runID)
}

// Cancel cancels a run and removes the sandboxes.
func (a *App) Cancel(ctx context.Context, j runstore.Store, id string, wait time.Duration) (runstore.Run, error) {
	r, err := FindRun(ctx, j, id)
	if err != nil {
		return r, err
	}
	switch state, err := RunState(ctx, j, r); {
	case err != nil:
		return r, err
	case state == RunRunning:
		if err := askCancel(ctx, j, r.ID, wait); !errors.Is(err, errExited) {
			return r, err
		}
		if r, err = j.Run(ctx, r.ID); err != nil || !r.Finished.IsZero() { // a worker took the run and canceled it
			return r, err
		}
		return a.Cancel(ctx, j, r.ID, wait)
	case state == RunQueued:
		return r, a.cancelQueued(ctx, j, r, wait)
	default: // includes finished runs, for which this returns an error with the outcome
		err := a.cancelDead(ctx, j, r)
		if errors.Is(err, errElsewhere) {
			err = a.cancelElsewhere(ctx, j, r.ID, wait, err)
		}
		return r, err
	}
}

// errExited means the process of a run exited without ending the run.
var errExited = errors.New("the process exited before the run ended")

// askCancel asks the process of a run to stop, and waits for the end of the run. It returns errExited if the process
// dies.
func askCancel(ctx context.Context, j runstore.Store, id string, wait time.Duration) error {
	if err := j.AskCancel(ctx, id); err != nil {
		return err
	}
	late, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	_, state, err := AwaitState(late, j, id, time.Second/4, RunRunning)
	switch {
	case err != nil && late.Err() != nil:
		return Fail(ExitFailed, fmt.Errorf("run %s has not stopped yet: %w", id, late.Err()),
			"if its process is suspended, resume or kill it, then run `workcell runs cancel "+id+"` again")
	case err == nil && state == RunInterrupted:
		return errExited
	}
	return err
}

// cancelDead cancels an interrupted run.
func (a *App) cancelDead(ctx context.Context, j runstore.Store, r runstore.Run) error {
	n, err := interrupted(ctx, j, r)
	if err != nil {
		return err
	}
	return a.withFlags(runFlags{Backend: n.Backend}).WithManager(ctx, Use{}, func(ctx context.Context, m *Manager) error {
		if err := n.checkEngine(ctx, m, r.ID); err != nil {
			return err
		}
		if err := take(ctx, j, m, r); err != nil {
			return err
		}
		// Record the end after all sandboxes are removed, as for a normal end.
		if _, err := admin.RemoveScope(ctx, m.Manager, scopeOf(r.ID)); err != nil {
			return err
		}
		why := &workflow.Error{Code: workflow.CodeCancelled, Message: "canceled after its process exited"}
		if err := j.Finish(ctx, r.ID, workflow.Cancelled, why); err != nil {
			return err
		}
		if m.runFiles().RemoveBegun(r.ID, time.Now()) != nil {
			a.Notice("cannot remove the original workspace of run %s from the state directory", r.ID)
		}
		return nil
	})
}

// MaxRuns is the maximum number of runs read by `runs ls`.
const MaxRuns = 10_000

// errElsewhere is wrapped in the error of checkRecords.
var errElsewhere = errors.New("on another engine")

// checkRecords returns an error if a sandbox of a run is on another engine.
func (m *Manager) checkRecords(ctx context.Context, runID string) error {
	recs, err := m.Records.List(ctx)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if rec.Key.Run() == runID && rec.Engine != m.Engine && rec.State.Live() {
			return Fail(ExitFailed,
				fmt.Errorf("sandbox %s of the run is %w (%s), and this host uses %s", rec.ID, errElsewhere, rec.Engine, m.Engine),
				"a worker on the host of that engine can continue the run; to cancel it, run `workcell runs cancel "+runID+"`")
		}
	}
	return nil
}

// cancelQueued cancels a run not taken by any process. If a worker takes the run at this moment, cancelQueued asks the
// worker to stop.
func (a *App) cancelQueued(ctx context.Context, j runstore.Store, r runstore.Run, wait time.Duration) error {
	// The owner is not alive, so a worker takes the run if this process dies now.
	err := j.Take(ctx, r.ID, "", "cancel-"+record.NewID())
	if errors.Is(err, backend.ErrExists) {
		return askCancel(ctx, j, r.ID, wait)
	}
	if err != nil {
		return err
	}
	why := &workflow.Error{Code: workflow.CodeCancelled, Message: "canceled before it started"}
	return j.Finish(ctx, r.ID, workflow.Cancelled, why)
}
