package runcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

func newRunsResumeCmd(a *command) *cobra.Command {
	fresh, from, detach := false, "", false
	cmd := a.Verb(cli.OutputFlags, &cobra.Command{
		Use:     "resume RUN",
		Example: "  workcell runs resume run_…\n  workcell runs resume run_… --fresh-sandbox\n  workcell runs resume run_… --detach\n  workcell runs resume run_… --from test",
		Short:   "Resume an interrupted run or return to a checkpoint",
		Long: `Resume a run whose process was killed, with its original flags. Completed steps are not
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
				return a.Resume(ctx, j, args[0], from, fresh, a.showResult)
			}
			if fresh || from != "" {
				return app.UsageError(errors.New("--detach cannot be used with --from or --fresh-sandbox"), "resume the run without --detach")
			}
			r, err := a.HandOver(ctx, j, args[0])
			if err != nil {
				return err
			}
			return a.printQueued(RunOutput{ID: r.ID, Workflow: r.Workflow, State: app.RunInterrupted, Started: r.Started})
		}),
	})
	cmd.Flags().BoolVar(&fresh, "fresh-sandbox", false, "use an empty sandbox if the run's sandbox is gone")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "add the run to the queue for workcell worker and print its ID")
	cmd.Flags().StringVar(&from, "from", "", "`STEP`: step to return to; requires checkpoints: true in the workflow")
	return cmd
}

func newRunsCancelCmd(a *command) *cobra.Command {
	var wait time.Duration
	cmd := a.Verb(cli.OutputFlags, &cobra.Command{
		Use:     "cancel RUN",
		Example: "  workcell runs cancel run_… --wait 5m",
		Short:   "Cancel a run and remove its sandboxes",
		Long: `Cancel a run and remove its sandboxes. If another process is running it, the command asks that process to
stop, as with Ctrl-C, and waits for it. If the process was killed, the command ends the run itself.`,
		Args: cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			if wait < 0 {
				return app.UsageError(fmt.Errorf("invalid value %s for --wait: must not be negative", wait),
					"for example --wait 5m")
			}
			r, err := a.Cancel(ctx, j, args[0], wait)
			if err != nil {
				return err
			}
			if err = a.showRun(ctx, j, r.ID); errors.Is(err, runstore.ErrDamaged) {
				a.Notice("run %s was cancelled, but its steps cannot be shown: %v", r.ID, err)
				return nil
			}
			return err
		}),
	})
	cmd.Flags().DurationVar(&wait, "wait", 3*time.Minute, "how long to wait for the run to stop")
	return cmd
}

// RunOutput is a run in the output of commands.
type RunOutput struct {
	ID       string    `json:"id"`
	Workflow string    `json:"workflow"`
	State    string    `json:"state"` // queued, running, interrupted, or the outcome
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished,omitzero"`
}

// printQueued prints a queued run.
func (a *command) printQueued(r RunOutput) error {
	return a.Print(r, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, r.ID)
		return err
	})
}

func runRow(ctx context.Context, j runstore.Store, r runstore.Run) (RunOutput, error) {
	state, err := app.RunState(ctx, j, r)
	return RunOutput{ID: r.ID, Workflow: r.Workflow, State: state, Started: r.Started, Finished: r.Finished}, err
}

// took returns the duration of a run so far.
func (r RunOutput) took(now time.Time) string {
	switch {
	case !r.Finished.IsZero():
		return cli.Short(r.Finished.Sub(r.Started))
	case r.State == app.RunRunning:
		return cli.Age(now.Sub(r.Started))
	}
	return ""
}

func newRunsLsCmd(a *command) *cobra.Command {
	var limit int
	cmd := a.Verb(cli.OutputFlags, &cobra.Command{
		Use:     "ls",
		Example: "  workcell runs ls -n 10",
		Aliases: []string{"list"},
		Short:   "List recent runs, newest first",
		Args:    cobra.NoArgs,
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, _ []string) error {
			if limit < 1 || limit > app.MaxRuns {
				return app.UsageError(fmt.Errorf("invalid value %d for --limit", limit),
					fmt.Sprintf("must be from 1 to %d", app.MaxRuns))
			}
			page, err := j.Runs(ctx, runstore.Query{Limit: limit})
			if err != nil {
				return err
			}
			rows := make([]RunOutput, len(page.Runs))
			for i, r := range page.Runs {
				if rows[i], err = runRow(ctx, j, r); err != nil {
					rows[i].State = app.RunUnknown
					a.Notice("cannot determine the state of run %s: %v", r.ID, err)
				}
			}
			now := time.Now()
			return cli.PrintList(a.Command, rows, []string{"ID", "WORKFLOW", "STATE", "AGE", "DURATION"}, func(r RunOutput) []string {
				return []string{r.ID, r.Workflow, r.State, cli.Age(now.Sub(r.Started)), r.took(now)}
			})
		}),
	})
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "maximum number of runs to list")
	return cmd
}

// shownRun is the output of `runs show`.
type shownRun struct {
	RunOutput
	File    string           `json:"file,omitempty"` // workflow file
	Backend string           `json:"backend,omitempty"`
	CostUSD *float64         `json:"cost_usd,omitempty"` // known cost of the finished attempts
	Entries []workflow.Entry `json:"entries"`            // journal

	detached bool
}

func newRunsShowCmd(a *command) *cobra.Command {
	return a.Verb(cli.OutputFlags, &cobra.Command{
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
	r, err := app.FindRun(ctx, j, id)
	if err != nil {
		return err
	}
	shown := shownRun{}
	if shown.RunOutput, err = runRow(ctx, j, r); err != nil {
		return err
	}
	if shown.Entries, err = j.Entries(ctx, r.ID); err != nil {
		return err
	}
	shown.CostUSD = costOf(shown.Entries)
	if n, err := app.ReadNote(r); err == nil {
		shown.File, shown.Backend, shown.detached = n.Workflow, n.Backend, n.Detached
	}
	return a.Print(shown, func(w io.Writer) error { return shown.table(w, time.Now()) })
}

// costOf returns the model cost of a run's coding agents, or nil if no cost is known.
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

// dollars returns a cost as text, or an empty string if the cost is unknown.
func dollars(cost *float64) string {
	if cost == nil {
		return ""
	}
	return fmt.Sprintf("$%.4f", *cost)
}

// table prints the run's finished attempts in the order of their end, and then its unfinished attempts. Below the
// table, it prints the full text of truncated errors and the last output of failed commands.
func (s shownRun) table(w io.Writer, now time.Time) error {
	cli.WriteFacts(w, [2]string{"run", s.ID}, [2]string{"workflow", s.Workflow}, [2]string{"file", s.File},
		[2]string{"backend", s.Backend}, [2]string{"state", s.State},
		[2]string{"started", s.Started.Local().Format(time.DateTime)}, [2]string{"duration", s.took(now)}, [2]string{"cost", dollars(s.CostUSD)})
	fmt.Fprintln(w)
	if err := cli.WriteTable(w, []string{"STEP", "TYPE", "ITERATION", "ATTEMPT", "STATUS", "DURATION", "COST", "ERROR"}, s.steps()); err != nil {
		return err
	}
	failed, kept := "", false // failed step of a run with checkpoints
	for _, e := range s.Entries {
		failed, kept = "", kept || e.Checkpoint != nil
		if e.Kind != workflow.EventStepFinished || e.Status != workflow.StatusFailed {
			continue
		}
		if kept && !e.Retry {
			failed = e.Path
		}
		text := ""
		if e.Error != nil && errorCell(e.Error) != sanitize.Line(e.Error.Message) {
			text = "  " + strings.ReplaceAll(e.Error.Message, "\n", "\n  ") + "\n"
		}
		if e.Type == workflow.TypeExec {
			for _, line := range cli.LastWords(e.Output) {
				text += "  | " + line + "\n"
			}
		}
		if text != "" {
			fmt.Fprintf(w, "\n%s, attempt %d:\n%s", sanitize.Line(e.Path), e.Attempt, sanitize.Text(text))
		}
	}
	switch {
	case s.detached && (s.State == app.RunInterrupted || s.State == app.RunQueued):
		fmt.Fprintf(w, "\nwaiting for a worker; to see its log, run: workcell runs logs %s\n", s.ID)
	case s.State == app.RunInterrupted && failed != "":
		fmt.Fprintf(w, "\nthe run failed; after you fix the problem, return to a step with: %s\n", app.ReturnTo(s.ID, failed))
	case s.State == app.RunInterrupted:
		fmt.Fprintf(w, "\nto resume it, run: workcell runs resume %s\n", s.ID)
	}
	return nil
}

// errorCell returns an error as a table cell.
func errorCell(e *workflow.Error) string { return sanitize.Cut(sanitize.Line(e.Message), 100) }

// steps returns the rows of the table. The end of an attempt replaces its start. The remaining attempts are running.
func (s shownRun) steps() [][]string {
	began := map[string]workflow.Entry{}
	row := func(e workflow.Entry, status, took, text string) []string {
		return []string{e.Path, doing(e), fmt.Sprint(e.Visit), fmt.Sprint(e.Attempt), status, took, dollars(e.CostUSD), text}
	}
	var rows [][]string
	for _, e := range s.Entries {
		switch e.Kind {
		case workflow.EventStepStarted:
			if cut, ok := began[e.Path]; ok && e.Repeats { // the attempt's process was killed
				rows = append(rows, row(cut, app.RunInterrupted, "", ""))
			}
			began[e.Path] = e
		case workflow.EventStepFinished:
			took, text := "", ""
			if start, ok := began[e.Path]; ok {
				took = cli.Short(e.Time.Sub(start.Time))
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

// doing returns the type of a step, and its agent if it runs an agent.
func doing(e workflow.Entry) string { return strings.TrimSpace(string(e.Type) + " " + e.Agent) }
