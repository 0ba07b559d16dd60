package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/session"
)

func newSandboxSnapshotCmd(a *command) *cobra.Command {
	remove := false
	cmd := a.Verb(cli.EngineFlags|cli.OutputFlags, &cobra.Command{
		Use:     "snapshot [flags] SANDBOX [NAME]",
		Aliases: []string{"snapshots"},
		Short:   "Create, list, or remove workspace snapshots",
		Long: `Create a snapshot of a sandbox's /workspace, or list its snapshots if you do not specify NAME. Commands are
paused during the snapshot; if that is impossible, no snapshot is created. Snapshots are removed with the workspace.`,
		Example: "  workcell sandbox snapshot mybox before\n  workcell sandbox snapshot mybox\n" +
			"  workcell sandbox snapshot --remove mybox before",
		Args: func(cmd *cobra.Command, args []string) error {
			if remove && len(args) != 2 {
				return errors.New("--remove requires a sandbox and a snapshot name")
			}
			return cobra.RangeArgs(1, 2)(cmd, args)
		},
		RunE: a.inSandbox(func(ctx context.Context, _ *app.Manager, s *session.Session, args []string) error {
			switch {
			case remove:
				list, _, err := s.Snapshots(ctx)
				i := slices.IndexFunc(list, func(snap backend.Snapshot) bool { return snap.Name == args[0] })
				if err == nil && i < 0 {
					err = fmt.Errorf("snapshot %q %w", args[0], backend.ErrNotFound)
				}
				if err == nil {
					err = s.RemoveSnapshot(ctx, args[0])
				}
				if err != nil {
					return noSnapshot(err)
				}
				return a.PrintLines(list[i], args[0])
			case len(args) == 0:
				return a.listSnapshots(ctx, s)
			}
			snap, err := s.Snapshot(ctx, args[0])
			if errors.Is(err, backend.ErrCapacity) {
				return app.Fail(app.ExitNoRoom, err, "to remove a snapshot, run `workcell sandbox snapshot --remove SANDBOX NAME`")
			}
			if err != nil {
				return err
			}
			return a.PrintLines(snap, snap.Name)
		}),
	})
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the snapshot")
	return cmd
}

func (a *command) listSnapshots(ctx context.Context, s *session.Session) error {
	list, _, err := s.Snapshots(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	return cli.PrintList(a.Command, list, []string{"NAME", "MECHANISM", "AGE"}, func(snap backend.Snapshot) []string {
		return []string{snap.Name, string(snap.Mechanism), app.Age(now.Sub(snap.Created))}
	})
}

func newSandboxRollbackCmd(a *command) *cobra.Command {
	return a.Verb(cli.EngineFlags, &cobra.Command{
		Use:     "rollback SANDBOX NAME",
		Short:   "Restore a sandbox's files from a snapshot",
		Long:    `Kill all commands in a sandbox and restore its /workspace from a snapshot. Other files are kept.`,
		Example: "  workcell sandbox rollback mybox before",
		Args:    cobra.ExactArgs(2),
		RunE: a.inSandbox(func(ctx context.Context, _ *app.Manager, s *session.Session, args []string) error {
			return noSnapshot(s.Rollback(ctx, args[0]))
		}),
	})
}

func newSandboxForkCmd(a *command) *cobra.Command {
	n := 1
	cmd := a.Verb(cli.EngineFlags|cli.OutputFlags, &cobra.Command{
		Use:   "fork [flags] SANDBOX NAME",
		Short: "Create sandboxes from a snapshot",
		Long: `Create sandboxes with the files of a snapshot and the settings of the original sandbox, and print their IDs.
Forks of a named sandbox have its idle timeout and idle policy; without an idle timeout, they exist until you
remove them. Other forks, such as forks of a run's sandbox, are removed when the run ends, or earlier if they reach
their idle timeout.`,
		Example: "  for id in $(workcell sandbox fork -n 3 mybox before); do workcell sandbox exec $id -- make; done",
		Args:    cobra.ExactArgs(2),
		RunE: a.inSandbox(func(ctx context.Context, m *app.Manager, s *session.Session, args []string) error {
			forks, err := s.Fork(ctx, args[0], n)
			if err != nil {
				return noSnapshot(err)
			}
			made := cli.Printed[app.SandboxView]{Command: a.Command}
			variables, err := m.LoadEnv(ctx, s, nil)
			errs := []error{err}
			for _, fork := range forks {
				if save := m.SaveEnv(variables); save != nil {
					errs = append(errs, save(ctx, fork))
				}
				made.Add(fork.ID(), app.ViewSandbox(fork.Info()))
			}
			return errors.Join(append(errs, made.End())...)
		}),
	})
	cmd.Flags().IntVarP(&n, "number", "n", 1, fmt.Sprintf("number of sandboxes, at most %d", session.MaxForks))
	return cmd
}

// noSnapshot adds a hint about the existing snapshots to a not-found error.
func noSnapshot(err error) error {
	if errors.Is(err, backend.ErrNotFound) {
		return app.Fail(app.ExitNotFound, err, "to list the snapshots, run `workcell sandbox snapshot SANDBOX`")
	}
	return err
}

// mechanism returns the snapshot mechanism of a sandbox for structured output. It is empty for text output, or if
// snapshots are not supported.
func (a *command) mechanism(ctx context.Context, s *session.Session) backend.SnapshotMechanism {
	if a.Out == cli.OutputTable {
		return ""
	}
	_, mechanism, _ := s.Snapshots(ctx) // the sandbox is usable without snapshots
	return mechanism
}
