package runcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

func newRunsResumeCmd(a *command) *cobra.Command {
	fresh, from, detach := false, "", false
	cmd := a.Verb(cli.OutputFlags, &cobra.Command{
		Use: "resume RUN",
		Example: "  workcell runs resume run_…\n  workcell runs resume run_… --fresh-sandbox\n" +
			"  workcell runs resume run_… --detach\n  workcell runs resume run_… --from test",
		Short: "Resume a run, or return to a checkpoint",
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
				return app.UsageError(errors.New("--detach cannot be used with --from or --fresh-sandbox"),
					"resume the run without --detach")
			}
			r, err := a.HandOver(ctx, j, args[0])
			if err != nil {
				return err
			}
			view := app.RunView{ID: r.ID, Workflow: r.Workflow, State: app.RunInterrupted, Started: r.Started}
			return a.PrintLines(view, r.ID)
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
stop, as with Ctrl-C, and waits for it. If the process was killed, the command marks the run as canceled.`,
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
				a.Notice("run %s was canceled, but its steps cannot be shown: %v", r.ID, err)
				return nil
			}
			return err
		}),
	})
	cmd.Flags().DurationVar(&wait, "wait", 3*time.Minute, "how long to wait for the run to stop")
	return cmd
}

// took returns the duration of a run so far.
func took(r app.RunView, now time.Time) string {
	switch d := r.Took(now); {
	case !r.Finished.IsZero():
		return cli.Short(d)
	case d > 0:
		return app.Age(d)
	}
	return ""
}

func newRunsLsCmd(a *command) *cobra.Command {
	q := app.RunQuery{}
	cmd := a.Verb(cli.OutputFlags, &cobra.Command{
		Use:     "ls",
		Example: "  workcell runs ls -n 10\n  workcell runs ls --state failed --workflow fix",
		Aliases: []string{"list"},
		Short:   "List recent runs, newest first",
		Long:    "List recent runs, newest first. --state selects states of runs; for a database, set WORKCELL_STATE.",
		Args:    cobra.NoArgs,
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, _ []string) error {
			if q.Limit < 1 || q.Limit > app.MaxRuns {
				return app.InvalidFlag("limit", q.Limit, fmt.Sprintf("must be 1 to %d", app.MaxRuns))
			}
			page, err := a.ListRuns(ctx, j, q)
			if err != nil {
				return err
			}
			now := time.Now()
			head := []string{"ID", "WORKFLOW", "STATE", "AGE", "DURATION"}
			return cli.PrintList(a.Command, page.Runs, head, func(r app.RunView) []string {
				return []string{r.ID, r.Workflow, r.State, app.Age(now.Sub(r.Started)), took(r, now)}
			})
		}),
	})
	cmd.Flags().IntVarP(&q.Limit, "limit", "n", 50, "maximum number of runs to list")
	cmd.Flags().Var(cli.OneOf(&q.State, app.RunStates...), "state", "list only runs in this state")
	cmd.Flags().StringVar(&q.Workflow, "workflow", "", "`ID`: list only runs of this workflow or agent")
	return cmd
}

func newRunsShowCmd(a *command) *cobra.Command {
	of := app.TranscriptOf{}
	cmd := a.Verb(cli.OutputFlags, &cobra.Command{
		Use: "show RUN",
		Example: "  workcell runs show run_…\n  workcell runs show run_… -o json\n" +
			"  workcell runs show run_… --transcript fix",
		Short: "Show the steps of a run",
		Long: `Show the steps of a run from its journal. With -o json, the command prints the journal itself,
including the input and output of each step.

With --transcript, the command prints the conversation of an agent with its model instead: messages, tool calls, and
their results. Conversations are kept for 7 days after their step, at most 64 MiB per run, and can contain secrets.
To change the time, set retention.transcripts in the configuration file; 0 keeps none.`,
		Args: cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			if of.Step == "" {
				return a.showRun(ctx, j, args[0])
			}
			list, err := a.Transcript(ctx, j, args[0], of)
			if err != nil {
				return err
			}
			return a.Print(list, func(w io.Writer) error { return printTranscript(w, list) })
		}),
	})
	cmd.Flags().StringVar(&of.Step, "transcript", "",
		"`STEP`: print the conversation of this step's agent; use the name in column STEP")
	return cmd
}

// printTranscript prints a conversation with a heading for each side's parts.
func printTranscript(w io.Writer, list []app.TranscriptPart) error {
	last := ""
	for _, p := range list {
		if at := fmt.Sprintf("iteration %d, attempt %d: %s", p.Visit, p.Attempt, sanitize.Line(p.Role)); at != last {
			fmt.Fprintf(w, "%s%s\n", strings.Repeat("\n", min(len(last), 1)), at)
			last = at
		}
		if what := strings.TrimSpace(p.Tool + " " + p.Media); what != "" {
			fmt.Fprintf(w, "  [%s]\n", sanitize.Line(what))
		}
		for _, v := range []any{p.Text, p.Input, p.Output} {
			if v == nil || v == "" {
				continue
			}
			if err := cli.WriteLines(w, "  ", v); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *command) showRun(ctx context.Context, j runstore.Store, id string) error {
	shown, err := a.ShowRun(ctx, j, id)
	if err != nil {
		return err
	}
	return a.Print(shown, func(w io.Writer) error { return printRun(w, shown, time.Now()) })
}

// dollars returns a cost as text, or an empty string if the cost is unknown.
func dollars(cost *float64) string {
	if cost == nil {
		return ""
	}
	return fmt.Sprintf("$%.4f", *cost)
}

// tokens returns a usage as text, or an empty string if it is unknown.
func tokens(u *workflow.Usage) string {
	if u == nil {
		return ""
	}
	text := fmt.Sprintf("%d in, %d out", u.In, u.Out)
	if u.CacheRead > 0 {
		text = fmt.Sprintf("%d in (%d cached), %d out", u.In, u.CacheRead, u.Out)
	}
	if u.Estimated {
		text += ", estimated"
	}
	return text
}

// printRun prints the run's finished attempts in the order of the ends, and then the unfinished attempts. Below the
// table, it prints the full text of truncated errors and the last output of failed commands.
func printRun(w io.Writer, s app.RunDetail, now time.Time) error {
	err := cli.WriteFacts(w, "run", s.ID, "workflow", s.Workflow, "file", s.File, "backend", s.Backend, "state", s.State,
		"started", s.Started.Local().Format(time.DateTime), "duration", took(s.RunView, now),
		"tokens", tokens(s.Usage), "cost", dollars(s.CostUSD))
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	head := []string{"STEP", "TYPE", "ITERATION", "ATTEMPT", "STATUS", "DURATION", "TOKENS", "COST", "ERROR"}
	if err := cli.WriteTable(w, head, steps(s)); err != nil {
		return err
	}
	failed, kept := "", false // failed step of a run with checkpoints
	for _, e := range s.Entries {
		failed, kept = "", kept || e.Checkpoint != nil
		if e.Kind != workflow.EventStepFinished || e.Status != workflow.StatusFailed {
			continue
		}
		if kept && !e.Retry {
			failed = sanitize.Line(e.Path)
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
	id := sanitize.Line(s.ID)
	switch word := hint.Quote(id); {
	case s.Waiting:
		fmt.Fprintf(w, "\nwaiting for a worker; to see its log, run: workcell runs logs %s\n", word)
	case s.State == app.RunInterrupted && failed != "":
		fmt.Fprintf(w, "\nthe run failed; after you fix the problem, return to a step with: %s\n", app.ReturnTo(id, failed))
	case s.State == app.RunInterrupted:
		fmt.Fprintf(w, "\nto resume it, run: workcell runs resume %s\n", word)
	}
	return nil
}

// errorCell returns an error as a table cell.
func errorCell(e *workflow.Error) string { return sanitize.Cut(sanitize.Line(e.Message), 100) }

// steps returns the rows of the table.
func steps(r app.RunDetail) (rows [][]string) {
	for _, s := range r.Steps() {
		e, took, used, text := s.Entry, "", "", ""
		if !s.Started.IsZero() && !s.Finished.IsZero() {
			took = cli.Short(s.Finished.Sub(s.Started))
		}
		if e.Usage != nil {
			used = fmt.Sprintf("%d→%d", e.Usage.In, e.Usage.Out)
		}
		if e.Error != nil {
			text = errorCell(e.Error)
		}
		doing := strings.TrimSpace(string(e.Type) + " " + e.Agent)
		row := []string{e.Path, doing, fmt.Sprint(e.Visit), fmt.Sprint(e.Attempt), s.State, took, used}
		rows = append(rows, append(row, dollars(e.CostUSD), text))
	}
	return rows
}
