// Package runcmd contains the commands to run agents and workflows, and the commands for runs.
package runcmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// command is a command of this group.
type command struct{ *cli.Command }

// Commands returns the commands to run agents and workflows.
func Commands(c *cli.Command) []*cobra.Command {
	a := &command{c}
	return []*cobra.Command{
		newRunCmd(a), newRunsCmd(a), newApprovalsCmd(a), newWorkerCmd(a), newAgentCmd(a), newValidateCmd(a),
	}
}

func newRunsCmd(a *command) *cobra.Command {
	return cli.Subcommands(&cobra.Command{
		Use:   "runs",
		Short: "List, inspect, and resume runs",
		Long: `List, show, resume, and cancel the runs of workflows and agents, and collect their results.

Each ` + "`workcell run`" + ` has a journal in the state directory. If its process is killed, the run is interrupted:
you can resume it, or cancel it to remove its sandboxes. The journals, outputs, patches, and traces of finished runs
are kept for 30 days (retention.runs). You can shorten a run ID to a unique prefix.`,
	}, newRunsLsCmd(a), newRunsShowCmd(a), newRunsLogsCmd(a), newRunsTraceCmd(a), newRunsResumeCmd(a), newRunsCancelCmd(a),
		newRunsFilesCmd(a), newRunsGetCmd(a), newRunsDiffCmd(a), newRunsApplyCmd(a), newRunsRmCmd(a))
}

// journalled returns the RunE of a command with only the journals of runs.
func (a *command) journalled(
	fn func(ctx context.Context, j runstore.Store, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		j, err := a.OpenJournal(cmd.Context())
		if err != nil {
			return err
		}
		defer j.Close() // acknowledged entries cannot be lost
		return fn(cmd.Context(), j, args)
	}
}
