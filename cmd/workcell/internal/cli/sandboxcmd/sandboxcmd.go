// Package sandboxcmd contains the commands for sandboxes.
package sandboxcmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/session"
)

// command is a command of this group.
type command struct{ *cli.Command }

// Commands returns the commands for sandboxes.
func Commands(c *cli.Command) []*cobra.Command {
	return []*cobra.Command{newSandboxCmd(&command{c})}
}

func newSandboxCmd(a *command) *cobra.Command {
	return cli.Subcommands(&cobra.Command{
		Use:     "sandbox",
		Aliases: []string{"sessions", "session"},
		Short:   "Create, inspect, use, and remove sandboxes",
		Long: `Create, inspect, use, and remove sandboxes, including those created by runs.

SANDBOX is the ID, key, or name of a sandbox, or the ID of a run that has only one sandbox. You can shorten an
ID to a unique prefix with at least four characters after sbx_ or run_.

A sandbox created with ` + "`sandbox open`" + ` is kept until you remove it. With --idle-timeout, it stops
when it is idle and keeps its files, and the next ` + "`sandbox exec`" + ` starts it again. A run's sandbox is
removed when the run ends. Until then, you can also use it. By default, a sandbox has no network access and is limited
to 1 CPU, 2 GiB of memory, and 500 MiB in /workspace.

Commands that use the same state directory or database see the same sandboxes.`,
		Example: "  id=$(workcell sandbox open --image python:3.11-slim)\n" +
			"  workcell sandbox exec \"$id\" -- sh -c 'date > out.txt'\n" +
			"  workcell sandbox cp \"$id\":out.txt .\n" +
			"  workcell sandbox rm \"$id\"",
	}, newSandboxOpenCmd(a), newSandboxLsCmd(a), newSandboxShowCmd(a), newSandboxExecCmd(a), newSandboxAttachCmd(a),
		newSandboxRmCmd(a), newSandboxCpCmd(a), newSandboxAllowCmd(a), newSandboxForwardCmd(a), newSandboxSnapshotCmd(a),
		newSandboxForkCmd(a), newSandboxRollbackCmd(a), newSandboxLogsCmd(a), newSandboxKillCmd(a), newSandboxGCCmd(a))
}

// action uses a manager.
type action func(ctx context.Context, m *app.Manager, args []string) error

// first returns the first argument.
func first(args []string) []string { return args[:1] }

// managed returns the RunE of a command with a manager. names returns the sandboxes in the arguments. It is nil
// for commands without sandbox arguments.
func (a *command) managed(
	state app.StateUse, names func(args []string) []string, do action,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		use := app.Use{State: state}
		if names != nil {
			use.Sandboxes = names(args)
		}
		return a.WithManager(cmd.Context(), use, func(ctx context.Context, m *app.Manager) error { return do(ctx, m, args) })
	}
}

// inSandbox returns the RunE of a command for the sandbox in the first argument, even if another process owns the
// sandbox.
func (a *command) inSandbox(
	do func(ctx context.Context, m *app.Manager, s *session.Session, args []string) error,
) func(*cobra.Command, []string) error {
	return a.managed(app.StateWanted, first, func(ctx context.Context, m *app.Manager, args []string) error {
		info, err := m.Find(ctx, args[0])
		if err != nil {
			return err
		}
		s, err := m.Connect(ctx, info.ID)
		if err != nil {
			return err
		}
		return do(ctx, m, s, args[1:])
	})
}
