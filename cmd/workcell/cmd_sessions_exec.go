package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

type sessionsExecOptions struct {
	engine  engineFlags
	dir     string
	env     []string
	timeout time.Duration
	noStdin bool
}

func newSessionsExecCmd(a *app) *cobra.Command {
	o := &sessionsExecOptions{}
	cmd := &cobra.Command{
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
		RunE: func(cmd *cobra.Command, args []string) error {
			return execError(o.run(cmd.Context(), a, args[0], args[1:]))
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if isDockerFlag(err) {
			return fail(exitExecProduct, err, "standard input is passed on anyway; a terminal is: workcell sessions attach SANDBOX [-- COMMAND]")
		}
		return fail(exitExecProduct, err, "flags of the command go after --: workcell sessions exec SANDBOX -- COMMAND -x")
	})
	o.engine.addTo(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.dir, "workdir", "w", "", "directory to run in; a relative one lies below /workspace")
	f.StringArrayVarP(&o.env, "env", "e", nil, "NAME=VALUE for the command, or NAME to pass this process's value on; may be repeated")
	f.DurationVar(&o.timeout, "timeout", session.MaxExecTimeout, "end the command and all it started after this long")
	f.BoolVarP(&o.noStdin, "no-stdin", "n", false, "give the command an empty standard input")
	return cmd
}

// isDockerFlag reports whether an unknown flag is one of those that docker takes for input and a terminal.
func isDockerFlag(err error) bool {
	var unknown *pflag.NotExistError
	return errors.As(err, &unknown) && slices.Contains([]string{"i", "t", "interactive", "tty"}, unknown.GetSpecifiedName())
}

func (o *sessionsExecOptions) run(ctx context.Context, a *app, name string, argv []string) error {
	environment, err := parseEnv(a.env, o.env)
	if err != nil {
		return err
	}
	if o.timeout < session.MinExecTimeout || o.timeout > session.MaxExecTimeout {
		return usageError(fmt.Errorf("--timeout %s is out of range", o.timeout),
			fmt.Sprintf("from %s to %s", session.MinExecTimeout, session.MaxExecTimeout))
	}
	return a.withManager(ctx, o.engine, imageFlags{}, stateWanted, func(ctx context.Context, m *session.Manager) error {
		s, err := connect(ctx, m, name)
		if err != nil {
			return err
		}
		environment, err := a.loadEnv(ctx, s, environment)
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
		return execStatus(a.stderr, s.Info().Limits, res)
	})
}

// connect reaches a sandbox beside its owner.
func connect(ctx context.Context, m *session.Manager, name string) (*session.Session, error) {
	list, err := m.List(ctx)
	if err != nil {
		return nil, err
	}
	info, err := findSandbox(list, name)
	if err != nil {
		return nil, err
	}
	return m.Connect(ctx, info.ID)
}

// execStatus turns the end of a command into this command's exit code. What the code alone does not say is said on
// standard error.
func execStatus(stderr io.Writer, limits backend.Limits, res session.ExecResult) error {
	switch res.Status {
	case session.ExecTimedOut:
		fmt.Fprintf(stderr, "workcell: the command was ended after %s, with all it started\n", res.Timeout)
		return exitWith(exitExecTimeout)
	case session.ExecOOMKilled:
		fmt.Fprintf(stderr, "workcell: the command was ended for lack of memory: the sandbox has %d MiB\n", limits.MemoryBytes>>20)
	case session.ExecQuotaKilled:
		if res.QuotaOutside {
			fmt.Fprintln(stderr, "workcell: the command was ended because what was written outside of the workspace passed its limit; delete files there with rm")
			break
		}
		fmt.Fprintln(stderr, "workcell: the command was ended because the workspace passed its limit; delete files, as with workcell sessions rm --file PATH SANDBOX")
	case session.ExecKilled:
		fmt.Fprintln(stderr, "workcell: the command was ended on request of another process")
	}
	if n := signalNumber(res.Signal); n > 0 {
		return exitWith(exitSignalBase + n)
	}
	if res.Signal != "" {
		return exitWith(exitSignalBase)
	}
	if res.ExitCode != 0 {
		return exitWith(res.ExitCode)
	}
	return nil
}

// execError gives workcell's own failures exit codes that do not look like the command's.
func execError(err error) error {
	if err == nil {
		return nil
	}
	var ce *cliError
	if errors.As(err, &ce) && ce.err == nil {
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
	for i, n := range names {
		if "SIG"+n == name {
			return i + 1
		}
	}
	return 0
}
