package runcmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

func newRunsLogsCmd(a *command) *cobra.Command {
	follow := false
	cmd := a.Verb(0, &cobra.Command{
		Use:   "logs RUN",
		Short: "Print the log of a detached run",
		Long: `Print the log of a detached run: its steps, the tool calls of its agents, and the reason if it was
interrupted or cannot run. You can read the log on any host that can connect to the database.

With --follow, the command prints new lines until the run ends. It exits with 0 if the run succeeds and with 1
otherwise.`,
		Example: "  workcell runs logs run_… --follow",
		Args:    cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			r, err := app.FindRun(ctx, j, args[0])
			if err != nil {
				return err
			}
			if n, err := app.ReadNote(r); err != nil || !n.Detached {
				return app.Fail(app.ExitNotFound, fmt.Errorf("run %s has no log because it was not detached", r.ID),
					"to see its steps, run `workcell runs show "+r.ID+"`")
			}
			if follow && r.Owner == "" && r.Finished.IsZero() {
				a.Notice("run %s is queued; no worker has started it yet", r.ID)
			}
			if r, err = a.ShowLog(ctx, a.Contents(), r, follow); err != nil || !follow {
				return err
			}
			return outcomeError(ctx, j, r)
		}),
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new lines until the run ends, and exit with its result")
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
	return app.Fail(app.ExitFailed, err, "")
}
