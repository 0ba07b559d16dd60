package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

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
	Entries []workflow.Entry `json:"entries"` // the journal
}

func newRunsShowCmd(a *app) *cobra.Command {
	return a.verb(outputFlags, &cobra.Command{
		Use:   "show RUN",
		Short: "Show what a run did",
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
	if n, err := readNote(r); err == nil {
		shown.File, shown.Backend = n.Workflow, n.Backend
	}
	return a.print(shown, func(w io.Writer) error { return shown.table(w, time.Now()) })
}

// table shows the run's attempts in the order in which they ended, then those that did not.
func (s shownRun) table(w io.Writer, now time.Time) error {
	writeFacts(w, [2]string{"run", s.ID}, [2]string{"workflow", s.Workflow}, [2]string{"file", s.File},
		[2]string{"backend", s.Backend}, [2]string{"state", s.State},
		[2]string{"started", s.Started.Local().Format(time.DateTime)}, [2]string{"took", s.took(now)})
	fmt.Fprintln(w)
	if err := writeTable(w, []string{"STEP", "TYPE", "VISIT", "ATTEMPT", "STATUS", "TOOK", "ERROR"}, s.steps()); err != nil {
		return err
	}
	if err := s.failures(w); err != nil {
		return err
	}
	if s.State == runInterrupted {
		_, err := fmt.Fprintf(w, "\nresume with: workcell runs resume %s\n", s.ID)
		return err
	}
	return nil
}

// failures shows what the table has no room for: errors that were cut, and what the commands wrote last that failed.
func (s shownRun) failures(w io.Writer) error {
	for _, e := range s.Entries {
		if e.Kind != workflow.EntryStepFinished || e.Status != workflow.StatusFailed {
			continue
		}
		var lines []string
		if e.Error != nil && errorCell(e.Error) != sanitize.Line(e.Error.Message) {
			for line := range strings.SplitSeq(e.Error.Message, "\n") {
				lines = append(lines, "  "+sanitize.Line(line))
			}
		}
		if e.Type == workflow.TypeExec {
			for _, line := range lastWords(e.Output) {
				lines = append(lines, "  | "+sanitize.Line(line))
			}
		}
		if len(lines) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s, attempt %d:\n%s\n", sanitize.Line(e.Path), e.Attempt, strings.Join(lines, "\n")); err != nil {
			return err
		}
	}
	return nil
}

// errorCell is an error as the table has it.
func errorCell(e *workflow.Error) string { return clip(sanitize.Line(e.Message), 100) }

// steps are the rows of the table. An attempt that began is replaced by its end; what is left is under way.
func (s shownRun) steps() [][]string {
	began := map[string]workflow.Entry{}
	row := func(e workflow.Entry, status, took, text string) []string {
		return []string{e.Path, doing(e), fmt.Sprint(e.Visit), fmt.Sprint(e.Attempt), status, took, text}
	}
	var rows [][]string
	for _, e := range s.Entries {
		switch e.Kind {
		case workflow.EntryStepStarted:
			began[e.Path] = e
		case workflow.EntryStepFinished:
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
