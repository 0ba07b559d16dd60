package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// execFlags are the flags of `exec` and `attach`.
type execFlags struct {
	dir string
	env []string
}

// addTo adds the flags. What is wrong with others is about the command that is run; dockerHint is for docker's -it.
func (f *execFlags) addTo(cmd *cobra.Command, dir, dockerHint string) {
	cmd.Flags().StringVarP(&f.dir, "workdir", "w", "", "directory to "+dir+" in; a relative one lies below /workspace")
	cmd.Flags().StringArrayVarP(&f.env, "env", "e", nil, "NAME=VALUE for the command, or NAME to pass this process's value on; may be repeated")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) && slices.Contains([]string{"i", "t", "interactive", "tty"}, unknown.GetSpecifiedName()) {
			return fail(exitExecProduct, err, dockerHint)
		}
		return fail(exitExecProduct, err, "flags of the command go after --: "+cmd.CommandPath()+" SANDBOX -- COMMAND -x")
	})
}

type sessionsExecOptions struct {
	execFlags
	timeout time.Duration
	noStdin bool
}

func newSessionsExecCmd(a *app) *cobra.Command {
	o := &sessionsExecOptions{}
	cmd := a.verb(engineFlags, &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] COMMAND [ARG…]",
		Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox, which may belong to a run that is under way. The sandbox is named by its id, its key,
its name, or its run when that has one sandbox only.

The command's arguments are passed as they are, without a shell. Standard input, output and error are the command's
own, and so is the exit code: 128+n when signal n ended it, 124 when it timed out (everything it started is ended), 127
when there is no such program, 126 when it cannot be executed, 125 when workcell itself failed.`,
		Example: "  workcell sessions exec sbx_… -- python3 -m unittest\n  workcell sessions exec mybox -w src -e DEBUG=1 -- make < input.txt",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) < 2 || dash > 1 || dash == 0 {
				return fail(exitExecProduct, errors.New("name one sandbox and a command"), "workcell sessions exec SANDBOX -- COMMAND")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return execError(o.run(cmd, a, args)) },
	})
	o.addTo(cmd, "run", "standard input is passed on anyway; a terminal is: workcell sessions attach SANDBOX [-- COMMAND]")
	cmd.Flags().DurationVar(&o.timeout, "timeout", session.MaxExecTimeout, "end the command and all it started after this long")
	cmd.Flags().BoolVarP(&o.noStdin, "no-stdin", "n", false, "give the command an empty standard input")
	return cmd
}

func (o *sessionsExecOptions) run(cmd *cobra.Command, a *app, args []string) error {
	own, err := parseEnv(a.env, o.env)
	if err != nil {
		return err
	}
	if o.timeout < session.MinExecTimeout || o.timeout > session.MaxExecTimeout {
		return usageError(fmt.Errorf("--timeout %s is out of range", o.timeout),
			fmt.Sprintf("from %s to %s", session.MinExecTimeout, session.MaxExecTimeout))
	}
	return a.inSandbox(func(ctx context.Context, s *session.Session, argv []string) error {
		environment, err := a.loadEnv(ctx, s, own)
		if err != nil {
			return err
		}
		streams := session.Streams{Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr}
		if o.noStdin {
			streams.Stdin = nil
		}
		res, err := s.Stream(ctx, session.ExecRequest{Argv: argv, Dir: o.dir, Env: environment, Timeout: o.timeout}, streams)
		if err != nil {
			return err
		}
		return a.execStatus(s.Info().Limits, res)
	})(cmd, args)
}

// execStatus turns the end of a command into this command's exit code. What the code alone does not say is said on
// standard error.
func (a *app) execStatus(limits backend.Limits, res session.ExecResult) error {
	switch res.Status {
	case session.ExecTimedOut:
		a.notice("the command was ended after %s, with all it started", res.Timeout)
		return exitWith(exitExecTimeout)
	case session.ExecOOMKilled:
		a.notice("the command was ended for lack of memory: the sandbox has %d MiB", limits.MemoryBytes>>20)
	case session.ExecQuotaKilled:
		if res.QuotaOutside {
			a.notice("the command was ended because what was written outside of the workspace passed its limit; delete files there with rm")
			break
		}
		a.notice("the command was ended because the workspace passed its limit; delete files, as with workcell sessions rm --file PATH SANDBOX")
	case session.ExecKilled:
		a.notice("the command was ended on request of another process")
	}
	if res.Signal != "" {
		return exitWith(exitSignalBase + signalNumber(res.Signal))
	}
	if res.ExitCode != 0 {
		return exitWith(res.ExitCode)
	}
	return nil
}

// execError sets exit codes for workcell's own failures that do not look like the command's.
func execError(err error) error {
	var ce *cliError
	if err == nil || errors.As(err, &ce) && ce.err == nil {
		return err
	}
	code := exitExecProduct
	var launch *session.LaunchError
	if errors.As(err, &launch) {
		switch launch.Reason {
		case session.LaunchNotFound:
			code = exitExecMissing
		case session.LaunchNotExecutable:
			code = exitExecNoRun
		}
	}
	_, hint := classify(err)
	if launch != nil && ce == nil {
		hint = ""
	}
	return fail(code, err, hint)
}

// signalNumber returns the number that Linux has for a signal's name, 0 for an unknown one. The command ran on Linux
// whatever this process runs on.
func signalNumber(name string) int {
	names := strings.Fields(`HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP
		TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS`)
	return slices.Index(names, strings.TrimPrefix(name, "SIG")) + 1
}
