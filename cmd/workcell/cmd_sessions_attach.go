package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
)

// defaultTerm is what the command is told of the terminal when this process does not know it.
const defaultTerm = "xterm"

type sessionsAttachOptions struct {
	engine     engineFlags
	dir        string
	env        []string
	detachKeys string
	another    bool
}

func newSessionsAttachCmd(a *app) *cobra.Command {
	o := &sessionsAttachOptions{}
	cmd := &cobra.Command{
		Use:   "attach [flags] SANDBOX [-- COMMAND [ARG…]]",
		Short: "Work in a sandbox at a terminal",
		Long: `Work in a sandbox at a terminal of its own, as at any other: job control, Ctrl-C, full screen programs, the size of the
window. The sandbox is named as for exec, and may belong to a run that is under way.

Runs COMMAND or, without one, a shell: the sandbox's $SHELL, else the first there is of bash, zsh, ash and sh. When
terminals are there already, the latest is joined, and what it showed last is shown again; somebody who is at it is
detached. --new, -w, -e and COMMAND make another one.

The detach keys leave the terminal, and so does everything else that ends this command early: what runs there goes on
and can be joined again. It ends when nobody was at its terminal for an hour, or when no workcell process has used the
sandbox for ten minutes. Meanwhile ` + "`workcell sessions logs`" + ` shows what it writes.

What the sandbox writes goes to this terminal as it is, control sequences included. The exit code is the command's, as
with exec; 0 after the detach keys.`,
		Example: "  workcell sessions attach mybox\n  workcell sessions attach mybox --detach-keys ctrl-x,x -- python3",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) == 0 || dash > 1 || dash == 0 || dash < 0 && len(args) > 1 {
				return fail(exitExecProduct, errors.New("name one sandbox"), "workcell sessions attach SANDBOX [-- COMMAND]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return execError(o.run(cmd.Context(), a, args[0], args[1:]))
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if isDockerFlag(err) {
			return fail(exitExecProduct, err, "it is at a terminal anyway: workcell sessions attach SANDBOX [-- COMMAND]")
		}
		return fail(exitExecProduct, err, "flags of the command go after --: workcell sessions attach SANDBOX -- COMMAND -x")
	})
	o.engine.addTo(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.dir, "workdir", "w", "", "directory to start in; a relative one lies below /workspace")
	f.StringArrayVarP(&o.env, "env", "e", nil, "NAME=VALUE for the command, or NAME to pass this process's value on; may be repeated")
	f.StringVar(&o.detachKeys, "detach-keys", defaultDetachKeys, "keys that leave the terminal: characters, ctrl-CHARACTER or DEL, with commas between them")
	f.BoolVar(&o.another, "new", false, "another terminal, though there is one to join")
	return cmd
}

func (o *sessionsAttachOptions) run(ctx context.Context, a *app, name string, argv []string) error {
	keys, err := parseDetachKeys(o.detachKeys)
	if err != nil {
		return usageError(err, "keys are a-z and other characters, ctrl-a to ctrl-z, ctrl-@ [ \\ ] ^ _, and DEL: ctrl-p,ctrl-q")
	}
	environment, err := parseEnv(a.env, o.env)
	if err != nil {
		return err
	}
	tty, err := newHostTerminal(a.stdin, a.stdout)
	if err != nil {
		return usageError(err, "without a terminal: workcell sessions exec SANDBOX -- COMMAND")
	}
	return a.withManager(ctx, o.engine, imageFlags{}, stateWanted, func(ctx context.Context, m *session.Manager) error {
		s, err := connect(ctx, m, name)
		if err != nil {
			return err
		}
		visit := terminalVisit{a: a, s: s, tty: tty, keys: keys}
		if len(argv) == 0 && !o.another && len(o.env) == 0 && o.dir == "" {
			if execID, err := openTerminal(ctx, s); err != nil || execID != "" {
				return visit.join(ctx, name, execID, err)
			}
		}
		if environment, err = a.loadEnv(ctx, s, environment); err != nil {
			return err
		}
		if environment["TERM"] == "" {
			environment["TERM"] = a.terminalName()
		}
		return visit.start(ctx, name, session.TerminalRequest{Argv: argv, Dir: o.dir, Env: environment})
	})
}

// terminalName is what this process's terminal is called.
func (a *app) terminalName() string {
	if name := a.env.Get("TERM"); name != "" {
		return name
	}
	return defaultTerm
}

// openTerminal returns the latest command that runs on a terminal; empty is none.
func openTerminal(ctx context.Context, s *session.Session) (execID string, err error) {
	known, err := s.ListExecs(ctx)
	for _, st := range known {
		if st.Terminal && !st.Done() {
			execID = st.ExecID
		}
	}
	return execID, err
}

// terminalVisit is one's stay at a terminal of a sandbox.
type terminalVisit struct {
	a    *app
	s    *session.Session
	tty  *hostTerminal
	keys []byte
}

func (v *terminalVisit) start(ctx context.Context, name string, req session.TerminalRequest) error {
	return v.stay(ctx, name, func(ctx context.Context, at session.TerminalStreams) (session.ExecResult, error) {
		req.Size = v.tty.size()
		return v.s.Terminal(ctx, req, at)
	})
}

func (v *terminalVisit) join(ctx context.Context, name, execID string, err error) error {
	if err != nil {
		return err
	}
	fmt.Fprintf(v.a.stderr, "workcell: this is the terminal of %s; --new makes another\n", execID)
	return v.stay(ctx, name, func(ctx context.Context, at session.TerminalStreams) (session.ExecResult, error) {
		return v.s.JoinTerminal(ctx, execID, v.tty.size(), at)
	})
}

// stay connects the two terminals, and leaves this process's as it was.
func (v *terminalVisit) stay(ctx context.Context, name string, call func(context.Context, session.TerminalStreams) (session.ExecResult, error)) error {
	res, err := func() (session.ExecResult, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		v.a.terminal.Store(v.tty)
		defer v.a.restoreTerminal() // a panic passes here too
		if err := v.tty.raw(); err != nil {
			return session.ExecResult{}, err
		}
		res, err := call(ctx, session.TerminalStreams{
			Stdin: newDetachReader(v.tty.in, v.keys), Stdout: v.tty.out, Resize: v.tty.watchSize(ctx),
		})
		if err != nil && res.ExecID != "" {
			v.tty.leave()
		}
		return res, err
	}()
	var launch *session.LaunchError
	switch {
	case errors.Is(err, session.ErrDetached):
		fmt.Fprintf(v.a.stderr, "workcell: detached; %s\n", comeBack(name))
		return nil
	case errors.As(err, &launch) && launch.Reason == session.LaunchNotFound:
		return fail(exitExecMissing, err, "name a program that the sandbox has: workcell sessions attach SANDBOX -- PROGRAM")
	case errors.Is(err, session.ErrTakenOver):
		return fail(exitExecProduct, session.ErrTakenOver, comeBack(name))
	case errors.Is(err, backend.ErrUnavailable) && res.ExecID != "":
		return fail(exitExecProduct, err, "what runs there goes on while its sandbox does; "+comeBack(name))
	case err != nil:
		return err
	}
	return execStatus(v.a.stderr, v.s.Info().Limits, res)
}

func comeBack(name string) string {
	return "to come back: workcell sessions attach " + sanitize.Line(name)
}
