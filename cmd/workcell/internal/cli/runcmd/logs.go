package runcmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

func newRunsLogsCmd(a *command) *cobra.Command {
	follow := false
	cmd := a.Verb(cli.OutputFlags, &cobra.Command{
		Use:   "logs RUN",
		Short: "Print the log of a run",
		Long: `Print the log of a detached run: its steps, the tool calls of its agents, and the reason if it was
interrupted or cannot run. You can read the log on any host that can connect to the database. Other runs have no log:
for them, and with -o json, the command prints the steps, as ` + "`workcell runs show`" + ` does.

With --follow, the command prints new lines until the run ends or leaves the queue. It exits with 0 if the run
succeeds and with 1 otherwise. If the run has no log, the command waits and then prints the steps.`,
		Example: "  workcell runs logs run_… --follow",
		Args:    cobra.ExactArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			r, err := app.FindRun(ctx, j, args[0])
			if err != nil {
				return err
			}
			detached, out := app.IsDetached(r), a.Contents()
			logged := detached && a.Out == cli.OutputTable
			if !logged {
				out = io.Discard
			}
			if follow && r.Owner == "" && r.Finished.IsZero() {
				a.Notice("run %s is queued; no worker has started it yet", r.ID)
			}
			switch {
			case logged, detached && follow:
				r, err = a.ShowLog(ctx, out, r, follow)
			case follow:
				r, _, err = app.AwaitState(ctx, j, r.ID, time.Second, app.RunRunning, app.RunQueued)
			}
			if err == nil && !logged {
				err = a.showRun(ctx, j, r.ID)
			}
			if err != nil || !follow {
				return err
			}
			return outcomeError(ctx, j, r)
		}),
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new lines until the run ends, and exit with its result")
	return cmd
}

// outcomeError returns the error for an unsuccessful run.
func outcomeError(ctx context.Context, j runstore.Store, r runstore.Run) error {
	if r.Outcome == workflow.Succeeded {
		return nil
	}
	entries, err := j.Entries(ctx, r.ID)
	if err != nil {
		return err
	}
	err = fmt.Errorf("run %s %s", r.ID, cmp.Or(string(r.Outcome), app.RunInterrupted))
	if last := entries[len(entries)-1]; last.Error != nil {
		err = fmt.Errorf("%w: %w", err, last.Error)
	}
	return app.Fail(app.ExitFailed, err, "")
}
