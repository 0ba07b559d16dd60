package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// followWait is the maximum wait of one request for new output.
const followWait = 30 * time.Second

func newSandboxLogsCmd(a *command) *cobra.Command {
	follow := false
	cmd := a.Verb(cli.EngineFlags|cli.OutputFlags, &cobra.Command{
		Use:   "logs [flags] SANDBOX [EXEC_ID]",
		Short: "Show commands in a sandbox and their output",
		Long: `List the commands in a sandbox, or print the output of a command. Without EXEC_ID, the list has all running
commands and the latest finished commands, oldest first. With EXEC_ID, the command prints the recorded standard output
and error unchanged. Runs that use the sandbox are not affected.

Output is recorded for commands of agents, workflows, MCP clients, and ` + "`sandbox attach`" + `, but not for
` + "`workcell sandbox exec`" + `, which prints it directly. The list omits program names because they can contain
secrets. Only the latest part of long output is kept; a line on standard error reports if the beginning is missing.`,
		Example: "  workcell sandbox logs mybox\n  workcell sandbox logs mybox exe_… --follow",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && cmd.Flags().Changed("output") {
				return app.UsageError(errors.New("--output cannot be used with EXEC_ID"),
					"-o sets the format of the list of commands")
			}
			if len(args) == 1 && follow {
				return app.UsageError(errors.New("--follow requires EXEC_ID"), listsCommands)
			}
			return a.inSandbox(func(ctx context.Context, _ *app.Manager, s *session.Session, ids []string) error {
				if len(ids) == 0 {
					return a.listExecs(ctx, s)
				}
				return a.printLog(ctx, s, ids[0], follow)
			})(cmd, args)
		},
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new output until the command exits")
	return cmd
}

// listsCommands is the hint for a missing or unknown command id.
const listsCommands = "to list the commands, run `workcell sandbox logs SANDBOX`"

func (a *command) listExecs(ctx context.Context, s *session.Session) error {
	list, err := app.Execs(ctx, s)
	if err != nil {
		return err
	}
	const ms = time.Millisecond
	head := []string{"EXEC ID", "STATUS", "EXIT", "DURATION", "AGE", "STDOUT", "STDERR"}
	return cli.PrintList(a.Command, list, head, func(e app.ExecView) []string {
		end, begun := e.Signal, ""
		if e.ExitCode != nil {
			end = strconv.Itoa(*e.ExitCode)
		}
		if e.AgeMS > 0 {
			begun = app.Age(time.Duration(e.AgeMS) * ms)
		}
		took := (time.Duration(e.DurationMS) * ms).Round(10 * ms)
		return []string{e.ExecID, string(e.Status), end, took.String(), begun, cli.ByteSize(e.StdoutBytes),
			cli.ByteSize(e.StderrBytes)}
	})
}

// printLog prints a command's recorded output. If follow is set, it continues until the command ends.
func (a *command) printLog(ctx context.Context, s *session.Session, execID string, follow bool) error {
	var req sandbox.ReadRequest
	left := int64(-1) // bytes to print without follow; the command may write more in the meantime
	for {
		res, err := s.Command(execID).Read(ctx, req)
		if err != nil {
			return logsError(err)
		}
		if res.Dropped > 0 {
			missing := "the beginning"
			if req.SinceSeq > 0 {
				missing = "some" // it was written faster than it was read
			}
			a.Notice("%s of the output was discarded%s", missing, wholeOutput(ctx, s, execID))
		}
		if left < 0 {
			left = min(res.Status.StdoutBytes+res.Status.StderrBytes, 1<<20) // the maximum recorded output
		}
		for _, c := range res.Chunks {
			left = max(0, left-int64(len(c.Data)))
			w := a.Stdout
			if c.Stream == "stderr" {
				w = a.Stderr
			}
			if _, err := w.Write(c.Data); err != nil {
				return err
			}
		}
		req.SinceSeq = res.NextSeq
		if res.Done || !follow && (left == 0 || len(res.Chunks) == 0) {
			return nil
		}
		if follow {
			req.Wait = followWait
		}
	}
}

// wholeOutput returns the location of the files with the whole output of a command in the sandbox, if they exist.
func wholeOutput(ctx context.Context, s *session.Session, execID string) string {
	for _, f := range app.OutputFiles(ctx, s, execID) {
		return fmt.Sprintf("; for all of it, run `workcell sandbox cp %s:%s -`", s.ID(), f.Path)
	}
	return ""
}

// logsError distinguishes a missing command from a missing sandbox.
func logsError(err error) error {
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return app.Fail(app.ExitFailed, err, listsCommands)
	case errors.Is(err, backend.ErrInvalid):
		return app.Fail(app.ExitFailed, err, listsCommands+"; output of `sandbox exec` is not recorded")
	}
	return err
}

func newSandboxKillCmd(a *command) *cobra.Command {
	all, signal := false, ""
	cmd := a.Verb(cli.EngineFlags|cli.OutputFlags, &cobra.Command{
		Use:   "kill [flags] SANDBOX EXEC_ID… | --all SANDBOX",
		Short: "Stop commands in a sandbox",
		Long: `Stop commands in a sandbox and all their child processes: send SIGTERM and, after two seconds,
SIGKILL. The sandbox keeps running. The client that started the command gets the status killed.
To list the commands of a sandbox, run ` + "`workcell sandbox logs SANDBOX`" + `.

With --signal, only this signal is sent. The IDs of the commands are printed; commands that have exited are ignored.`,
		Example: "  workcell sandbox kill mybox exe_…\n  workcell sandbox kill --signal INT mybox exe_…\n" +
			"  workcell sandbox kill --all mybox",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || all == (len(args) > 1) {
				return app.UsageError(errors.New("specify a sandbox and EXEC_IDs, or use --all"), listsCommands)
			}
			return nil
		},
		RunE: a.inSandbox(func(ctx context.Context, _ *app.Manager, s *session.Session, ids []string) error {
			return a.kill(ctx, s, ids, all, signal)
		}),
	})
	cmd.Flags().BoolVar(&all, "all", false,
		"stop all running commands and, without --signal, leftover processes of finished commands")
	cmd.Flags().StringVarP(&signal, "signal", "s", "",
		"`SIGNAL`: signal to send, for example INT or SIGINT (default SIGTERM, then SIGKILL)")
	return cmd
}

// killedExec is a command in the output of `sandbox kill`.
type killedExec struct {
	ExecID string            `json:"exec_id"`
	Status sandbox.ExecState `json:"status"` // running if the command handles the signal or ends later
}

// kill kills commands of a sandbox. It distinguishes a missing command from a missing sandbox.
func (a *command) kill(ctx context.Context, s *session.Session, ids []string, all bool, signal string) error {
	killed := cli.Printed[killedExec]{Command: a.Command}
	done := func(st sandbox.ExecStatus) { killed.Add(st.ExecID, killedExec{st.ExecID, st.Status}) }
	if all {
		list := s.Commands
		if signal == "" {
			list = s.KillAll
		}
		known, err := list(ctx)
		if err != nil {
			return err
		}
		for _, st := range known {
			if signal == "" {
				done(st)
			} else if !st.Done() {
				ids = append(ids, st.ExecID)
			}
		}
	}
	var errs []error
	for _, id := range ids {
		st, err := s.Command(id).Signal(ctx, signal)
		switch {
		case err == nil:
			done(st)
		case errors.Is(err, backend.ErrNotFound):
			errs = append(errs, app.Fail(app.ExitFailed, fmt.Errorf("%s: %w", id, err), listsCommands))
		case errors.Is(err, backend.ErrInvalid):
			errs = append(errs, app.UsageError(fmt.Errorf("%s: %w", id, err), "use a signal name with --signal; "+listsCommands))
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, killed.End())...)
}
