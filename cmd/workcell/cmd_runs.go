package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/engines"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/internal/isolated"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

func newRunsCmd(a *command) *cobra.Command {
	return subcommands(&cobra.Command{
		Use:   "runs",
		Short: "Manage runs and collect their results",
		Long: `List, show, resume, and cancel the runs of workflows and agents, and collect their results.

Each ` + "`workcell run`" + ` has a journal in the state directory. If its process is killed, the run is interrupted:
you can resume it, or cancel it to remove its sandboxes. The journals, outputs, patches, and traces of finished runs
are kept for 30 days. You can shorten a run ID to its unique beginning.`,
	}, newRunsLsCmd(a), newRunsShowCmd(a), newRunsLogsCmd(a), newRunsTraceCmd(a), newRunsResumeCmd(a), newRunsCancelCmd(a),
		newRunsFilesCmd(a), newRunsGetCmd(a), newRunsDiffCmd(a), newRunsApplyCmd(a), newRunsRmCmd(a))
}

// journalled returns what a command runs with the journals of runs. Nothing else is needed to look at them.
func (a *command) journalled(fn func(ctx context.Context, j runstore.Store, args []string) error) func(*cobra.Command, []string) error {
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
	RunFlags
	Workflow string `json:"workflow"`
	Engine   string `json:"engine"`
	Detached bool   `json:"detached,omitempty"` // it came from the queue, where its files are
}

// note describes how the run was started. The backend is the one that was taken, whatever would be taken later.
func (h *host) note(path string) (string, error) {
	set, err := h.loaded()
	if err != nil {
		return "", err
	}
	n := runNote{RunFlags: h.opts.RunFlags, Workflow: path, Engine: h.m.engine}
	n.Backend, n.TraceContent, n.Defaults = h.m.Backend().Name(), set.conf.TraceContent, &set.defaults
	script, isScript := scriptOf(n.Model)
	err = absolute(&n.Workflow, &n.Agents, &n.Workspace, &n.Out, &n.Audit, &n.Prices, &n.HostTools, &script)
	if err != nil {
		return "", err
	}
	if isScript {
		n.Model = scripted.Provider + "/" + script
	}
	raw, err := json.Marshal(n)
	return string(raw), err
}

// absolute makes paths absolute that are not empty.
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

// States of runs, besides the outcomes of finished ones.
const (
	runRunning     = "running"
	runInterrupted = "interrupted"
	runQueued      = "queued"  // nobody has had it yet
	runUnknown     = "unknown" // the file of its process cannot be looked at
)

// runState returns where a run is.
func runState(ctx context.Context, j runstore.Store, r runstore.Run) (string, error) {
	if !r.Finished.IsZero() {
		return string(r.Outcome), nil
	}
	if r.Owner == "" {
		return runQueued, nil
	}
	lives, err := j.Lives(ctx, r.Owner)
	if lives {
		return runRunning, err
	}
	return runInterrupted, err
}

// findRun returns a run by its id, or by the beginning of it when only one has that.
func findRun(ctx context.Context, j runstore.Store, id string) (runstore.Run, error) {
	r, err := j.Run(ctx, id)
	if !errors.Is(err, backend.ErrNotFound) {
		return r, err
	}
	runs, err := j.Runs(ctx, maxRuns)
	if err != nil {
		return r, err
	}
	var found []runstore.Run
	for _, r := range runs {
		if abbreviates(id, r.ID) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return r, fail(exitNotFound, fmt.Errorf("run not found: %q", id), "run `workcell runs ls` to list runs")
	case 1:
		return found[0], nil
	}
	return r, usageError(fmt.Errorf("%q matches %d runs", id, len(found)), "use more characters of the run ID")
}

// readNote returns how a run was started.
func readNote(r runstore.Run) (n runNote, err error) {
	if err := json.Unmarshal([]byte(r.Note), &n); err != nil || n.Workflow == "" {
		return n, fail(exitFailed, fmt.Errorf("run %s was not started by `workcell run`", r.ID), "")
	}
	return n, nil
}

// checkNote refuses a run whose note names files and programs of this machine, unless this machine wrote the note: the
// database gets no say in those, nor in whether a run of this machine was detached.
func (a *app) checkNote(r runstore.Run, n runNote) error {
	place, err := a.state()
	if err != nil || place.URL == "" {
		return err
	}
	kept, err := a.runFiles()
	if err != nil {
		return err
	}
	again := "or run `workcell runs cancel " + r.ID + "` and start a new run with the same flags"
	own, err := kept.Note(r.ID)
	if errors.Is(err, fs.ErrNotExist) {
		if n.Detached { // only what came with it counts
			return nil
		}
		return fail(exitFailed, fmt.Errorf("run %s was not started with this state directory", r.ID),
			"resume it on the host and with the --state-dir where it started, because the database must not choose local files, "+again)
	}
	if err != nil || own == r.Note {
		return err
	}
	var here, there map[string]any
	if err := errors.Join(json.Unmarshal([]byte(own), &here), json.Unmarshal([]byte(r.Note), &there)); err != nil {
		return err
	}
	keys := slices.Sorted(maps.Keys(here))
	for key := range there {
		if _, ok := here[key]; !ok {
			keys = append(keys, key)
		}
	}
	keys = slices.DeleteFunc(keys, func(key string) bool { return reflect.DeepEqual(here[key], there[key]) })
	err = fmt.Errorf("the flags of run %s have changed in the database: %s", r.ID, strings.Join(keys, ", "))
	return fail(exitFailed, err, "restore the run's note in the database, "+again)
}

// interrupted returns what is needed to resume a run whose process died, or why that cannot be done.
func interrupted(ctx context.Context, j runstore.Store, r runstore.Run) (runNote, error) {
	switch state, err := runState(ctx, j, r); {
	case err != nil:
		return runNote{}, err
	case state == runRunning:
		return runNote{}, fail(exitConflict, fmt.Errorf("run %s is running in another process", r.ID), "to stop it, run `workcell runs cancel "+r.ID+"`")
	case state != runInterrupted && state != runQueued:
		return runNote{}, fail(exitConflict, fmt.Errorf("run %s: %w: %s", r.ID, workflow.ErrFinished, state), "")
	}
	return readNote(r)
}

// take makes a run that was interrupted this process's own.
func take(ctx context.Context, j runstore.Store, m *manager, r runstore.Run) error {
	err := j.Take(ctx, r.ID, r.Owner, m.Owner())
	if errors.Is(err, backend.ErrExists) || errors.Is(err, backend.ErrNotFound) {
		return fail(exitConflict, fmt.Errorf("another process took the run: %w", err), "to see its state, run `workcell runs show "+r.ID+"`")
	}
	return err
}

// checkEngine makes sure that a run's sandboxes are where its next process looks for them.
func (n runNote) checkEngine(ctx context.Context, m *manager, run string) error {
	if n.Detached {
		if has := m.Backend().Name(); n.Backend != "" && n.Backend != engines.Auto && n.Backend != has {
			err := fmt.Errorf("the run requires backend %s, but this host uses %s", n.Backend, has)
			return fail(exitInvalid, err, "set WORKCELL_BACKEND="+n.Backend)
		}
		return m.checkRecords(ctx, run)
	}
	if m.engine == n.Engine {
		return nil
	}
	return fail(exitFailed, fmt.Errorf("the run's sandboxes are on another %s engine", n.Backend),
		"set DOCKER_HOST, CONTAINERD_ADDRESS, and similar variables to their values at the start of the run")
}

func newRunsResumeCmd(a *command) *cobra.Command {
	fresh, from, detach := false, "", false
	cmd := a.verb(outputFlags, &cobra.Command{
		Use:     "resume RUN",
		Example: "  workcell runs resume run_…\n  workcell runs resume run_… --fresh-sandbox\n  workcell runs resume run_… --detach\n  workcell runs resume run_… --from test",
		Short:   "Resume an interrupted run or return to a checkpoint",
		Long: `Resume a run whose process was killed, with the flags that it was started with. Completed steps are not
repeated. The interrupted step runs again: a command restarts, and an agent continues after its last recorded tool
result. Leftover processes of that step are killed. The run keeps its sandboxes and files. If a sandbox is gone, the
command fails unless you pass --fresh-sandbox to continue with an empty sandbox.

With --from, the run returns to its state before the latest iteration of STEP, including the files in its sandboxes,
and repeats that step and all later steps. The workflow must have checkpoints: true. You can use --from even if the
run failed, until you cancel it.

With --detach, the command adds the run and its local files to the queue, and a ` + "`workcell worker`" + ` continues
it. --detach cannot be used with --from or --fresh-sandbox.`,
		Args: cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			if !detach {
				return a.resumeRun(ctx, j, args[0], from, fresh, a.showResult)
			}
			if fresh || from != "" {
				return usageError(errors.New("--detach cannot be used with --from or --fresh-sandbox"), "resume the run without --detach")
			}
			r, err := a.handOver(ctx, j, args[0])
			if err != nil {
				return err
			}
			return a.printQueued(runOutput{ID: r.ID, Workflow: r.Workflow, State: runInterrupted, Started: r.Started})
		}),
	})
	cmd.Flags().BoolVar(&fresh, "fresh-sandbox", false, "use an empty sandbox if the run's sandbox is gone")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "add the run to the queue for workcell worker and print its ID")
	cmd.Flags().StringVar(&from, "from", "", "`STEP` to return to; requires checkpoints: true in the workflow")
	return cmd
}

func (a *app) resumeRun(ctx context.Context, j runstore.Store, id, from string, fresh bool, show showResult) error {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return err
	}
	n, err := interrupted(ctx, j, r)
	if err != nil {
		return err
	}
	if err := a.checkNote(r, n); err != nil {
		return err
	}
	wf, agents, onKept, done, err := a.loadRun(ctx, r, &n)
	if err != nil {
		return fail(exitInvalid, err, "restore the original file, or cancel the run: workcell runs cancel "+r.ID)
	}
	defer done()
	if wf.Hash != r.Hash {
		return fail(exitInvalid, fmt.Errorf("%s: %w", n.Workflow, workflow.ErrChanged),
			"restore the original file, or cancel the run: workcell runs cancel "+r.ID)
	}
	flags := n.RunFlags
	if n.Detached {
		flags.Backend = "" // this machine chooses
	}
	return a.withFlags(flags).withHost(ctx, managerUse{}, agents, true, func(ctx context.Context, h *host) error {
		if err := n.checkEngine(ctx, h.m, r.ID); err != nil {
			return err
		}
		entries, err := j.Entries(ctx, r.ID)
		if err != nil {
			return err
		}
		if err := checkSandboxes(ctx, h.m, r.ID); err != nil && !fresh {
			// They are gone too when another process resumed the run meanwhile, and ended it.
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
				return fail(exitFailed, err, "to list the steps, run `workcell runs show "+r.ID+"`; --from requires checkpoints: true in the workflow")
			}
		}
		if err := take(ctx, j, h.m, r); err != nil {
			return err
		}
		h.resume(kept)
		return h.execute(ctx, j, runSpec{
			wf: wf, note: r.Note, onKept: onKept, show: show,
			do: func(ctx context.Context, e *workflow.Engine) (*workflow.Result, error) {
				if from != "" {
					return e.ResumeFrom(ctx, wf, entries, from)
				}
				return e.Resume(ctx, wf, entries)
			},
		})
	})
}

// handOver puts a run that was interrupted into the queue.
func (a *app) handOver(ctx context.Context, j runstore.Store, id string) (runstore.Run, error) {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return r, err
	}
	n, err := interrupted(ctx, j, r)
	if err == nil {
		err = a.checkNote(r, n)
	}
	if err == nil {
		err = a.enqueue(ctx, r, n)
	}
	return r, err
}

// errFilesGone is in the error of checkSandboxes when nobody can resume the run as it was.
var errFilesGone = errors.New("are gone")

// checkSandboxes makes sure that what the run's steps did in its sandboxes is still there. Sandboxes of isolated steps
// are closed with their steps.
func checkSandboxes(ctx context.Context, m *manager, runID string) error {
	gone, err := m.Gone(ctx, session.Scope{Namespace: session.NamespaceWorkflow, ID: runID})
	if err != nil {
		return err
	}
	var names []string
	for _, key := range gone {
		if !isolated.Is(key.Name) {
			names = append(names, key.Name)
		}
	}
	if names == nil {
		return nil
	}
	return fail(exitNotFound, fmt.Errorf("the files of run %s %w: sandbox %s was removed", runID, errFilesGone, strings.Join(names, ", ")),
		"pass --fresh-sandbox to continue with an empty sandbox, or cancel the run: workcell runs cancel "+runID)
}

func newRunsCancelCmd(a *command) *cobra.Command {
	var wait time.Duration
	cmd := a.verb(outputFlags, &cobra.Command{
		Use:     "cancel RUN",
		Example: "  workcell runs cancel run_… --wait 5m",
		Short:   "Cancel a run and remove its sandboxes",
		Long: `Cancel a run and remove its sandboxes. If another process is running it, the command asks that process to
stop, as with Ctrl-C, and waits for it. If the process was killed, the command ends the run itself.`,
		Args: cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			if wait < 0 {
				return usageError(fmt.Errorf("invalid value %s for --wait: must not be negative", wait), "for example --wait 5m")
			}
			r, err := a.cancelRun(ctx, j, args[0], wait)
			if err != nil {
				return err
			}
			if err = a.showRun(ctx, j, r.ID); errors.Is(err, runstore.ErrDamaged) {
				a.notice("run %s was cancelled, but its steps cannot be shown: %v", r.ID, err)
				return nil
			}
			return err
		}),
	})
	cmd.Flags().DurationVar(&wait, "wait", 3*time.Minute, "how long to wait for the run to stop")
	return cmd
}

// cancelRun ends a run and removes its sandboxes.
func (a *app) cancelRun(ctx context.Context, j runstore.Store, id string, wait time.Duration) (runstore.Run, error) {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return r, err
	}
	switch state, err := runState(ctx, j, r); {
	case err != nil:
		return r, err
	case state == runRunning:
		return r, askCancel(ctx, j, r.ID, wait)
	case state == runQueued:
		return r, a.cancelQueued(ctx, j, r, wait)
	default: // also one that has finished, which is an error with its outcome
		err := a.cancelDead(ctx, j, r)
		if errors.Is(err, errElsewhere) {
			err = a.cancelElsewhere(ctx, j, r.ID, wait, err)
		}
		return r, err
	}
}

// askCancel asks the process that runs a run to stop, and waits until it did. A process that dies meanwhile leaves the run
// interrupted.
func askCancel(ctx context.Context, j runstore.Store, id string, wait time.Duration) error {
	err := j.AskCancel(ctx, id)
	if err != nil {
		return err
	}
	late, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var state string
	if !runstore.Await(late, j, id, time.Second/4, func(r runstore.Run, got error) bool {
		if err = got; err == nil {
			state, err = runState(ctx, j, r)
		}
		return err != nil || state != runRunning
	}) {
		return fail(exitFailed, fmt.Errorf("run %s has not stopped yet: %w", id, late.Err()),
			"if its process is suspended, resume or kill it, then run `workcell runs cancel "+id+"` again")
	}
	if err == nil && state == runInterrupted {
		return fail(exitFailed, fmt.Errorf("the process of run %s exited before the run ended", id), "try again: workcell runs cancel "+id)
	}
	return err
}

// cancelDead ends a run that was interrupted.
func (a *app) cancelDead(ctx context.Context, j runstore.Store, r runstore.Run) error {
	n, err := interrupted(ctx, j, r)
	if err != nil {
		return err
	}
	return a.withFlags(RunFlags{Backend: n.Backend}).withManager(ctx, managerUse{}, func(ctx context.Context, m *manager) error {
		if err := n.checkEngine(ctx, m, r.ID); err != nil {
			return err
		}
		if err := take(ctx, j, m, r); err != nil {
			return err
		}
		// Its end is recorded when nothing is left of it, as that of a run that ends by itself.
		if _, err := m.RemoveScope(ctx, session.Scope{Namespace: session.NamespaceWorkflow, ID: r.ID}); err != nil {
			return err
		}
		why := &workflow.Error{Code: workflow.CodeCancelled, Message: "cancelled after its process exited"}
		if err := j.Finish(ctx, r.ID, workflow.Cancelled, why); err != nil {
			return err
		}
		if kept, err := a.runFiles(); err != nil || kept.RemoveBegun(r.ID) != nil {
			a.notice("cannot remove the original workspace of run %s from the state directory", r.ID)
		}
		return nil
	})
}

// maxRuns bounds what `runs ls` reads.
const maxRuns = 10_000

// runOutput is a run in the output of commands.
type runOutput struct {
	ID       string    `json:"id"`
	Workflow string    `json:"workflow"`
	State    string    `json:"state"` // queued, running, interrupted, or the outcome
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished,omitzero"`
}

// printQueued prints the run that a worker will take.
func (a *command) printQueued(r runOutput) error {
	return a.print(r, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, r.ID)
		return err
	})
}

func runRow(ctx context.Context, j runstore.Store, r runstore.Run) (runOutput, error) {
	state, err := runState(ctx, j, r)
	return runOutput{ID: r.ID, Workflow: r.Workflow, State: state, Started: r.Started, Finished: r.Finished}, err
}

// took returns how long a run took, or is taking.
func (r runOutput) took(now time.Time) string {
	switch {
	case !r.Finished.IsZero():
		return short(r.Finished.Sub(r.Started))
	case r.State == runRunning:
		return age(now.Sub(r.Started))
	}
	return ""
}

func newRunsLsCmd(a *command) *cobra.Command {
	var limit int
	cmd := a.verb(outputFlags, &cobra.Command{
		Use:     "ls",
		Example: "  workcell runs ls -n 10",
		Aliases: []string{"list"},
		Short:   "List recent runs, newest first",
		Args:    cobra.NoArgs,
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, _ []string) error {
			if limit < 1 || limit > maxRuns {
				return usageError(fmt.Errorf("invalid value %d for --limit", limit), fmt.Sprintf("must be from 1 to %d", maxRuns))
			}
			runs, err := j.Runs(ctx, limit)
			if err != nil {
				return err
			}
			rows := make([]runOutput, len(runs))
			for i, r := range runs {
				if rows[i], err = runRow(ctx, j, r); err != nil {
					rows[i].State = runUnknown
					a.notice("cannot determine the state of run %s: %v", r.ID, err)
				}
			}
			now := time.Now()
			return printList(a, rows, []string{"ID", "WORKFLOW", "STATE", "AGE", "DURATION"}, func(r runOutput) []string {
				return []string{r.ID, r.Workflow, r.State, age(now.Sub(r.Started)), r.took(now)}
			})
		}),
	})
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "maximum number of runs to list")
	return cmd
}

// shownRun is what `runs show` prints.
type shownRun struct {
	runOutput
	File    string           `json:"file,omitempty"` // of the workflow
	Backend string           `json:"backend,omitempty"`
	CostUSD *float64         `json:"cost_usd,omitempty"` // of the attempts that ended, as far as it is known
	Entries []workflow.Entry `json:"entries"`            // the journal

	detached bool
}

func newRunsShowCmd(a *command) *cobra.Command {
	return a.verb(outputFlags, &cobra.Command{
		Use:     "show RUN",
		Example: "  workcell runs show run_…\n  workcell runs show run_… -o json",
		Short:   "Show the steps of a run",
		Long: `Show the steps of a run from its journal. With -o json, the command prints the journal itself,
including the input and output of each step.`,
		Args: cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			return a.showRun(ctx, j, args[0])
		}),
	})
}

func (a *command) showRun(ctx context.Context, j runstore.Store, id string) error {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return err
	}
	shown := shownRun{}
	if shown.runOutput, err = runRow(ctx, j, r); err != nil {
		return err
	}
	if shown.Entries, err = j.Entries(ctx, r.ID); err != nil {
		return err
	}
	shown.CostUSD = costOf(shown.Entries)
	if n, err := readNote(r); err == nil {
		shown.File, shown.Backend, shown.detached = n.Workflow, n.Backend, n.Detached
	}
	return a.print(shown, func(w io.Writer) error { return shown.table(w, time.Now()) })
}

// costOf returns what the models of coding agents cost in a run; nil when nothing is known of that.
func costOf(entries []workflow.Entry) (sum *float64) {
	for _, e := range entries {
		if e.CostUSD == nil {
			continue
		}
		if sum == nil {
			sum = new(float64)
		}
		*sum += *e.CostUSD
	}
	return sum
}

// dollars returns a cost for people; empty for none that is known.
func dollars(cost *float64) string {
	if cost == nil {
		return ""
	}
	return fmt.Sprintf("$%.4f", *cost)
}

// table shows the run's attempts in the order in which they ended, then those that did not. Below it stands what it has no
// room for: errors that were cut, and what the commands that failed wrote last.
func (s shownRun) table(w io.Writer, now time.Time) error {
	writeFacts(w, [2]string{"run", s.ID}, [2]string{"workflow", s.Workflow}, [2]string{"file", s.File},
		[2]string{"backend", s.Backend}, [2]string{"state", s.State},
		[2]string{"started", s.Started.Local().Format(time.DateTime)}, [2]string{"duration", s.took(now)}, [2]string{"cost", dollars(s.CostUSD)})
	fmt.Fprintln(w)
	if err := writeTable(w, []string{"STEP", "TYPE", "ITERATION", "ATTEMPT", "STATUS", "DURATION", "COST", "ERROR"}, s.steps()); err != nil {
		return err
	}
	for _, e := range s.Entries {
		if e.Kind != workflow.EventStepFinished || e.Status != workflow.StatusFailed {
			continue
		}
		text := ""
		if e.Error != nil && errorCell(e.Error) != sanitize.Line(e.Error.Message) {
			text = "  " + strings.ReplaceAll(e.Error.Message, "\n", "\n  ") + "\n"
		}
		if e.Type == workflow.TypeExec {
			for _, line := range lastWords(e.Output) {
				text += "  | " + line + "\n"
			}
		}
		if text != "" {
			fmt.Fprintf(w, "\n%s, attempt %d:\n%s", sanitize.Line(e.Path), e.Attempt, sanitize.Text(text))
		}
	}
	switch {
	case s.detached && (s.State == runInterrupted || s.State == runQueued):
		fmt.Fprintf(w, "\nwaiting for a worker; to see its log, run: workcell runs logs %s\n", s.ID)
	case s.State == runInterrupted:
		fmt.Fprintf(w, "\nto resume it, run: workcell runs resume %s\n", s.ID)
	}
	return nil
}

// errorCell is an error as the table has it.
func errorCell(e *workflow.Error) string { return sanitize.Cut(sanitize.Line(e.Message), 100) }

// steps are the rows of the table. An attempt that began is replaced by its end; what is left is under way.
func (s shownRun) steps() [][]string {
	began := map[string]workflow.Entry{}
	row := func(e workflow.Entry, status, took, text string) []string {
		return []string{e.Path, doing(e), fmt.Sprint(e.Visit), fmt.Sprint(e.Attempt), status, took, dollars(e.CostUSD), text}
	}
	var rows [][]string
	for _, e := range s.Entries {
		switch e.Kind {
		case workflow.EventStepStarted:
			began[e.Path] = e
		case workflow.EventStepFinished:
			took, text := "", ""
			if start, ok := began[e.Path]; ok {
				took = short(e.Time.Sub(start.Time))
			}
			delete(began, e.Path)
			if e.Error != nil {
				text = errorCell(e.Error)
			}
			rows = append(rows, row(e, string(e.Status), took, text))
		}
	}
	for _, e := range slices.SortedFunc(maps.Values(began), func(a, b workflow.Entry) int {
		return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.Path, b.Path))
	}) {
		rows = append(rows, row(e, s.State, "", ""))
	}
	return rows
}

// doing returns what a step is: its type, and the agent of one that runs one.
func doing(e workflow.Entry) string { return strings.TrimSpace(string(e.Type) + " " + e.Agent) }

// errElsewhere is in the error of checkRecords.
var errElsewhere = errors.New("on another engine")

// checkRecords makes sure that no sandbox of a run is on another engine than this process has.
func (m *manager) checkRecords(ctx context.Context, runID string) error {
	recs, err := m.records.List(ctx)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if rec.Key.Run() == runID && rec.Engine != m.engine && rec.State.Live() {
			return fail(exitFailed, fmt.Errorf("sandbox %s of the run is %w (%s), and this host uses %s", rec.ID, errElsewhere, rec.Engine, m.engine),
				"a worker on the host of that engine can continue the run; to cancel it, run `workcell runs cancel "+runID+"`")
		}
	}
	return nil
}

// cancelQueued ends a run that nobody has yet. One that a worker takes at that moment is asked to stop.
func (a *app) cancelQueued(ctx context.Context, j runstore.Store, r runstore.Run, wait time.Duration) error {
	err := j.Take(ctx, r.ID, "", "cancel-"+session.NewID()) // of nobody alive: should this process die now, a worker takes it
	if errors.Is(err, backend.ErrExists) {
		return askCancel(ctx, j, r.ID, wait)
	}
	if err != nil {
		return err
	}
	why := &workflow.Error{Code: workflow.CodeCancelled, Message: "cancelled before it started"}
	return j.Finish(ctx, r.ID, workflow.Cancelled, why)
}
