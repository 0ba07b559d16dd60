package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

func newRunsLogsCmd(a *app) *cobra.Command {
	follow := false
	cmd := a.verb(0, &cobra.Command{
		Use:   "logs RUN",
		Short: "Print what the workers said of a run",
		Long: `Print what ` + "`workcell run`" + ` would have shown of a run that was detached: its steps, the tool calls of its agents, and
why it was interrupted or is not carried out. It can be read wherever the database can be.

With --follow it goes on until the run has ended, and exits as ` + "`workcell run`" + ` does: with 0 when the run succeeded, else with 1.`,
		Example: "  workcell runs logs run_… --follow",
		Args:    cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			r, err := findRun(ctx, j, args[0])
			if err != nil {
				return err
			}
			if n, err := readNote(r); err != nil || !n.Detached {
				return fail(exitNotFound, fmt.Errorf("run %s has no log: it was not detached, and said what it did where it ran", r.ID),
					"`workcell runs show "+r.ID+"` shows its steps")
			}
			if follow && r.Owner == "" && r.Finished.IsZero() {
				a.notice("run %s is in the queue: no worker has taken it yet", r.ID)
			}
			if r, err = a.showLog(ctx, r, follow); err != nil || !follow {
				return err
			}
			return outcomeError(ctx, j, r)
		}),
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run has ended, and exit as it ended")
	return cmd
}

// outcomeError returns the error of a run that did not succeed.
func outcomeError(ctx context.Context, j runstore.Store, r runstore.Run) error {
	if r.Outcome == workflow.Succeeded {
		return nil
	}
	entries, err := j.Entries(ctx, r.ID)
	if err != nil {
		return err
	}
	err = fmt.Errorf("run %s %s", r.ID, r.Outcome)
	if last := entries[len(entries)-1]; last.Error != nil {
		err = fmt.Errorf("%w: %w", err, last.Error)
	}
	return fail(exitFailed, err, "")
}
