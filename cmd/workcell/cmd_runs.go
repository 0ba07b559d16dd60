package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/engines"
	"github.com/workcell-dev/workcell/internal/isolated"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

// cancelEvery is how often a run looks whether somebody asked for its end.
const cancelEvery = time.Second

func newRunsCmd(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "runs",
		Short: "List, show, resume and cancel runs, and bring home what they made",
		Long: `List, show, resume and cancel workflow runs, and bring home what they and runs of agents made.

Every run of ` + "`workcell run`" + ` has a journal in the state directory. One whose process died is interrupted: it can be
resumed, or cancelled, which removes its sandboxes. The journals of finished runs, their outputs, patches and traces are kept for 30 days.`,
	}, newRunsLsCmd(a), newRunsShowCmd(a), newRunsTraceCmd(a), newRunsResumeCmd(a), newRunsCancelCmd(a),
		newRunsFilesCmd(a), newRunsGetCmd(a), newRunsDiffCmd(a), newRunsApplyCmd(a), newRunsRmCmd(a))
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
	runFlags
	Workflow string `json:"workflow"`
	Engine   string `json:"engine"`
}

// note describes how the run was started. The backend is the one that was taken, whatever would be taken later.
func (h *host) note(path string) (string, error) {
	n := runNote{runFlags: h.runFlags, Workflow: path, Engine: h.engineID(h.m)}
	n.Backend = engines.NameOf(h.m.Backend())
	script, isScript := scriptOf(n.Model)
	var errs []error
	for _, path := range []*string{&n.Workflow, &n.Agents, &n.Workspace, &n.Out, &n.Audit, &n.Prices, &n.HostTools, &script} {
		if *path != "" {
			abs, err := filepath.Abs(*path)
			*path, errs = abs, append(errs, err)
		}
	}
	if isScript {
		n.Model = scripted.Provider + "/" + script
	}
	raw, err := json.Marshal(n)
	return string(raw), errors.Join(append(errs, err)...)
}

// engineID returns the id of a manager's engine.
func (a *app) engineID(m *session.Manager) string { return a.engines().ID(engines.NameOf(m.Backend())) }

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
	if a.engineID(m) == n.Engine {
		return nil
	}
	return fail(exitFailed, fmt.Errorf("the run's sandboxes are on another %s engine than the one that answers here", n.Backend),
		"set DOCKER_HOST, CONTAINERD_ADDRESS and the like as they were when the run began")
}

func newRunsResumeCmd(a *app) *cobra.Command {
	fresh := false
	cmd := a.verb(outputFlags, &cobra.Command{
		Use:     "resume RUN",
		Example: "  workcell runs resume run_…\n  workcell runs resume run_… --fresh-sandbox",
		Short:   "Resume a run whose process died",
		Long: `Resume a run whose process died, with the flags that it was started with. Steps that finished are not run again;
the step that was under way is: a command from its start, an agent behind the last tool call whose result is recorded. What
it left running, and no result speaks of, is ended. The run's sandboxes are adopted with their files. When one of them is gone, the run is not resumed, unless --fresh-sandbox says that an empty one will do.`,
		Args: cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j *sqlitejournal.Journal, args []string) error {
			return a.resumeRun(ctx, j, args[0], fresh)
		}),
	})
	cmd.Flags().BoolVar(&fresh, "fresh-sandbox", false, "resume with an empty sandbox where the run's own is gone")
	return cmd
}

func (a *app) resumeRun(ctx context.Context, j *sqlitejournal.Journal, id string, fresh bool) error {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return err
	}
	n, err := interrupted(j, r)
	if err != nil {
		return err
	}
	wf, agents, err := loadWorkflow(n.Workflow, n.Agents)
	if err != nil {
		return fail(exitInvalid, err, "the file must be as it was when the run began; `workcell runs cancel "+r.ID+"` ends it")
	}
	if wf.Hash != r.Hash {
		return fail(exitInvalid, fmt.Errorf("%s: %w", n.Workflow, workflow.ErrChanged),
			"put back what it was, or end the run: workcell runs cancel "+r.ID)
	}
	a.resumeWith(n.runFlags)
	return a.withHost(ctx, agents, true, func(ctx context.Context, h *host) error {
		if err := n.checkEngine(a, h.m); err != nil {
			return err
		}
		entries, err := j.Entries(ctx, r.ID)
		if err != nil {
			return err
		}
		if err := checkSandboxes(ctx, h.m, r.ID); err != nil && !fresh {
			// They are gone too when another process resumed the run meanwhile, and ended it.
			if now, late := j.Run(ctx, r.ID); late == nil {
				if _, taken := interrupted(j, now); taken != nil {
					return taken
				}
			}
			return err
		}
		if err := take(ctx, j, h.m, r); err != nil {
			return err
		}
		h.resume(entries)
		return h.execute(ctx, j, r.Note, func(ctx context.Context, e *workflow.Engine) (*workflow.Result, error) {
			return e.Resume(ctx, wf, entries)
		})
	})
}

// checkSandboxes makes sure that what the run's steps did in its sandboxes is still there. Sandboxes of isolated steps
// are closed with their steps.
func checkSandboxes(ctx context.Context, m *session.Manager, runID string) error {
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
	return fail(exitNotFound, fmt.Errorf("the files of run %s are gone: it had the sandbox %s, which was removed", runID, strings.Join(names, ", ")),
		"pass --fresh-sandbox to resume with an empty one, or end it: workcell runs cancel "+runID)
}

func newRunsCancelCmd(a *app) *cobra.Command {
	var wait time.Duration
	cmd := a.verb(outputFlags, &cobra.Command{
		Use:     "cancel RUN",
		Example: "  workcell runs cancel run_… --wait 5m",
		Short:   "End a run and remove its sandboxes",
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
	a.resumeWith(n.runFlags)
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
		why := &workflow.Error{Code: workflow.CodeCancelled, Message: "cancelled after its process had died"}
		if err := j.Finish(ctx, r.ID, workflow.Cancelled, why); err != nil {
			return err
		}
		if kept, err := a.runFiles(); err != nil || kept.RemoveBegun(r.ID) != nil {
			a.notice("the workspace of run %s as it began is still in the state directory", r.ID)
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
	State    string    `json:"state"` // running, interrupted, or the outcome
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished,omitzero"`
}

func runRow(j *sqlitejournal.Journal, r sqlitejournal.Run) (runOutput, error) {
	state, err := runState(j, r)
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

func newRunsLsCmd(a *app) *cobra.Command {
	var limit int
	cmd := a.verb(outputFlags, &cobra.Command{
		Use:     "ls",
		Example: "  workcell runs ls -n 10",
		Aliases: []string{"list"},
		Short:   "List the latest runs, the newest first",
		Args:    cobra.NoArgs,
		RunE: a.journalled(func(ctx context.Context, j *sqlitejournal.Journal, _ []string) error {
			if limit < 1 || limit > maxRuns {
				return usageError(fmt.Errorf("--limit %d is out of range", limit), fmt.Sprintf("from 1 to %d", maxRuns))
			}
			runs, err := j.Runs(ctx, limit)
			if err != nil {
				return err
			}
			rows := make([]runOutput, len(runs))
			for i, r := range runs {
				if rows[i], err = runRow(j, r); err != nil {
					rows[i].State = runUnknown
					a.notice("cannot tell whether run %s is under way: %v", r.ID, err)
				}
			}
			now := time.Now()
			return printList(a, rows, []string{"ID", "WORKFLOW", "STATE", "AGE", "TOOK"}, func(r runOutput) []string {
				return []string{r.ID, r.Workflow, r.State, age(now.Sub(r.Started)), r.took(now)}
			})
		}),
	})
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "how many runs to list")
	return cmd
}

// shownRun is what `runs show` prints.
type shownRun struct {
	runOutput
	File    string           `json:"file,omitempty"` // of the workflow
	Backend string           `json:"backend,omitempty"`
	CostUSD *float64         `json:"cost_usd,omitempty"` // of the attempts that ended, as far as it is known
	Entries []workflow.Entry `json:"entries"`            // the journal
}

func newRunsShowCmd(a *app) *cobra.Command {
	return a.verb(outputFlags, &cobra.Command{
		Use:     "show RUN",
		Example: "  workcell runs show run_…\n  workcell runs show run_… -o json",
		Short:   "Show what a run did",
		Long: `Show what a run did, step by step, from its journal. As JSON or YAML that is the journal itself, with the input and
the output of each step.`,
		Args: cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j *sqlitejournal.Journal, args []string) error {
			return a.showRun(ctx, j, args[0])
		}),
	})
}

func (a *app) showRun(ctx context.Context, j *sqlitejournal.Journal, id string) error {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return err
	}
	shown := shownRun{}
	if shown.runOutput, err = runRow(j, r); err != nil {
		return err
	}
	if shown.Entries, err = j.Entries(ctx, r.ID); err != nil {
		return err
	}
	shown.CostUSD = costOf(shown.Entries)
	if n, err := readNote(r); err == nil {
		shown.File, shown.Backend = n.Workflow, n.Backend
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
		[2]string{"started", s.Started.Local().Format(time.DateTime)}, [2]string{"took", s.took(now)}, [2]string{"cost", dollars(s.CostUSD)})
	fmt.Fprintln(w)
	if err := writeTable(w, []string{"STEP", "TYPE", "VISIT", "ATTEMPT", "STATUS", "TOOK", "COST", "ERROR"}, s.steps()); err != nil {
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
	if s.State == runInterrupted {
		fmt.Fprintf(w, "\nresume with: workcell runs resume %s\n", s.ID)
	}
	return nil
}

// errorCell is an error as the table has it.
func errorCell(e *workflow.Error) string { return clip(sanitize.Line(e.Message), 100) }

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
