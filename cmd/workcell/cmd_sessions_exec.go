package main

import (
	"bytes"
	"cmp"
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
	"github.com/workcell-dev/workcell/session/interpreter"
)

// execFlags are the flags of `exec` and `attach`.
type execFlags struct {
	dir  string
	env  []string
	user string
}

// addTo adds the flags. What is wrong with others is about the command that is run; dockerHint is for docker's -it.
func (f *execFlags) addTo(cmd *cobra.Command, dir, dockerHint string) {
	cmd.Flags().StringVarP(&f.dir, "workdir", "w", "", "directory to "+dir+" in; a relative one lies below /workspace")
	cmd.Flags().StringArrayVarP(&f.env, "env", "e", nil, "NAME=VALUE for the command, or NAME to pass this process's value on; may be repeated")
	cmd.Flags().StringVarP(&f.user, "user", "u", "", "uid, uid:gid or root to "+dir+" as, which must be the sandbox's user")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) && slices.Contains([]string{"i", "t", "interactive", "tty"}, unknown.GetSpecifiedName()) {
			return fail(exitExecProduct, err, dockerHint)
		}
		return fail(exitExecProduct, err, renamedFlag(cmd, err, "flags of the command go after --: "+cmd.CommandPath()+" SANDBOX -- COMMAND -x"))
	})
}

// checkUser refuses another user than the sandbox's: the guest, which starts its commands, has no capability, so that they are its
// own user's.
func (f *execFlags) checkUser(has string) error {
	if f.user == "" {
		return nil
	}
	want, err := session.ParseUser(f.user)
	if err != nil {
		return usageError(fmt.Errorf("--user %q is not known", f.user), "use UID or UID:GID in numbers, as 1000:1000")
	}
	if f.user != "root" && !strings.Contains(f.user, ":") { // whatever its group
		want, has = f.user, strings.Split(has, ":")[0]
	}
	if want != has {
		return fail(exitExecProduct, fmt.Errorf("commands of this sandbox run as %s, and none can become --user %s", has, f.user),
			"open a sandbox for that user: workcell sessions open --user "+f.user)
	}
	return nil
}

type sessionsExecOptions struct {
	execFlags
	timeout  time.Duration
	noStdin  bool
	language string // of the interpreter that runs a program; empty runs a command
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
when there is no such program, 126 when it cannot be executed, 125 when workcell itself failed.

With --interpreter the one argument, or without one standard input, is a program, run in an interpreter of the sandbox that keeps
variables from one call to the next. The value of its last expression is printed, and images are left out.`,
		Example: "  workcell sessions exec sbx_… -- python3 -m unittest\n  workcell sessions exec mybox -w src -e DEBUG=1 -- make < input.txt",
		Args: func(cmd *cobra.Command, args []string) error {
			if o.language != "" {
				return cobra.RangeArgs(1, 2)(cmd, args)
			}
			if dash := cmd.ArgsLenAtDash(); len(args) < 2 || dash > 1 || dash == 0 {
				return fail(exitExecProduct, errors.New("name one sandbox and a command"), "workcell sessions exec SANDBOX -- COMMAND")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return execError(o.run(cmd, a, args)) },
	})
	o.addTo(cmd, "run", "standard input is passed on anyway; a terminal is: workcell sessions attach SANDBOX [-- COMMAND]")
	cmd.Flags().DurationVar(&o.timeout, "exec-timeout", session.MaxExecTimeout, "end the command and all it started after this long")
	cmd.Flags().Var(oneOf(&o.language, interpreter.Python, interpreter.Node), "interpreter", "run a program in this interpreter, which keeps its variables")
	cmd.Flags().BoolVarP(&o.noStdin, "no-stdin", "n", false, "give the command an empty standard input")
	return cmd
}

func (o *sessionsExecOptions) run(cmd *cobra.Command, a *app, args []string) error {
	own, err := parseEnv(a.env, o.env)
	if err != nil {
		return err
	}
	if o.timeout < session.MinExecTimeout || o.timeout > session.MaxExecTimeout {
		return usageError(fmt.Errorf("--exec-timeout %s is out of range", o.timeout),
			fmt.Sprintf("from %s to %s", session.MinExecTimeout, session.MaxExecTimeout))
	}
	return a.inSandbox(func(ctx context.Context, s *session.Session, argv []string) error {
		if err := o.checkUser(s.Info().User); err != nil {
			return err
		}
		environment, err := a.loadEnv(ctx, s, own)
		if err != nil {
			return err
		}
		if o.language != "" {
			return o.program(ctx, a, s, argv, environment)
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

// printedBytes is how much of the beginning, and of the end, of a program's output is printed.
const printedBytes = 512 << 10 // the most there is

// program runs a program in an interpreter of the sandbox.
func (o *sessionsExecOptions) program(ctx context.Context, a *app, s *session.Session, args []string, environment map[string]string) error {
	if len(args) == 0 {
		code, err := io.ReadAll(io.LimitReader(a.stdin, session.MaxStdinBytes+1))
		if err != nil {
			return err
		}
		args = []string{string(code)}
	}
	res, err := interpreter.Run(ctx, s, interpreter.Request{Language: o.language, Code: args[0], Exec: session.ExecRequest{
		Timeout: o.timeout, Env: environment, HeadBytes: printedBytes, TailBytes: printedBytes,
	}})
	if err != nil {
		return err
	}
	if _, err := a.stdout.Write(res.Stdout.Bytes()); err != nil {
		return err
	}
	if _, err := a.stderr.Write(res.Stderr.Bytes()); err != nil {
		return err
	}
	if res.Text != "" {
		if _, err := fmt.Fprintln(a.stdout, res.Text); err != nil {
			return err
		}
	}
	for _, out := range []session.Output{res.Stdout, res.Stderr} {
		if out.Omitted > 0 {
			a.notice("%d bytes are left out; all of it is in %s of the sandbox", out.Omitted, out.Path)
		}
	}
	if res.Lost {
		a.notice("the variables of earlier programs are lost: the interpreter was ended")
	}
	return a.execStatus(s.Info().Limits, res.ExecResult)
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

// defaultTerm is what the command is told of the terminal when this process does not know it.
const defaultTerm = "xterm"

type sessionsAttachOptions struct {
	execFlags
	detachKeys string
	another    bool
}

func newSessionsAttachCmd(a *app) *cobra.Command {
	o := &sessionsAttachOptions{}
	cmd := a.verb(engineFlags, &cobra.Command{
		Use:   "attach [flags] SANDBOX [--] [COMMAND [ARG…]]",
		Short: "Work in a sandbox at a terminal",
		Long: `Work in a sandbox at a terminal of its own, as at any other: job control, Ctrl-C, full screen programs, the size of the
window. The sandbox is named as for exec, and may belong to a run that is under way.

Runs COMMAND or, without one, a shell: the sandbox's $SHELL, else the one that /etc/passwd has for its user unless that is
sh, else the first there is of bash, zsh, ash and sh. When
terminals are there already, the latest is joined, and what it showed last is shown again; somebody who is at it is
detached. --new, -w, -e and COMMAND make another one.

The detach keys leave the terminal, and so does everything else that ends this command early: what runs there continues
and can be joined again. It ends when nobody was at its terminal for an hour, or when no workcell process has used the
sandbox for ten minutes. Meanwhile ` + "`workcell sessions logs`" + ` shows what it writes.

What the sandbox writes goes to this terminal as it is, control sequences included. The exit code is the command's, as
with exec; 0 after the detach keys.`,
		Example: "  workcell sessions attach mybox\n  workcell sessions attach mybox bash\n  workcell sessions attach mybox --detach-keys ctrl-x,x -- python3 -q",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) == 0 || dash > 1 || dash == 0 {
				return fail(exitExecProduct, errors.New("name one sandbox"), "workcell sessions attach SANDBOX [COMMAND]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return execError(o.run(cmd, a, args)) },
	})
	o.addTo(cmd, "start", "it is at a terminal anyway: workcell sessions attach SANDBOX [-- COMMAND]")
	cmd.Flags().StringVar(&o.detachKeys, "detach-keys", defaultDetachKeys, "keys that leave the terminal: characters, ctrl-CHARACTER or DEL, with commas between them")
	cmd.Flags().BoolVar(&o.another, "new", false, "another terminal, though there is one to join")
	return cmd
}

func (o *sessionsAttachOptions) run(cmd *cobra.Command, a *app, args []string) error {
	keys, err := parseDetachKeys(o.detachKeys)
	if err != nil {
		return usageError(err, "keys are a-z and other characters, ctrl-a to ctrl-z, ctrl-@ [ \\ ] ^ _, and DEL: ctrl-p,ctrl-q")
	}
	own, err := parseEnv(a.env, o.env)
	if err != nil {
		return err
	}
	tty, err := newHostTerminal(a.stdin, a.stdout)
	if err != nil {
		return usageError(err, "without a terminal: workcell sessions exec SANDBOX -- COMMAND")
	}
	return a.inSandbox(func(ctx context.Context, s *session.Session, argv []string) error {
		if err := o.checkUser(s.Info().User); err != nil {
			return err
		}
		v := &viewer{a: a, s: s, name: args[0], tty: tty, keys: keys}
		if len(argv) == 0 && !o.another && len(o.env) == 0 && o.dir == "" {
			if execID, err := openTerminal(ctx, s); err != nil {
				return err
			} else if execID != "" {
				a.notice("this is the terminal of %s; --new makes another", execID)
				return v.connect(ctx, func(ctx context.Context, at session.TerminalStreams) (session.ExecResult, error) {
					return s.JoinTerminal(ctx, execID, tty.size(), at)
				})
			}
		}
		environment, err := a.loadEnv(ctx, s, own)
		if err != nil {
			return err
		}
		if environment["TERM"] == "" {
			environment["TERM"] = cmp.Or(a.env.Get("TERM"), defaultTerm)
		}
		return v.connect(ctx, func(ctx context.Context, at session.TerminalStreams) (session.ExecResult, error) {
			return s.Terminal(ctx, session.TerminalRequest{Argv: argv, Dir: o.dir, Env: environment, Size: tty.size()}, at)
		})
	})(cmd, args)
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

// viewer is this process's terminal at one of a sandbox.
type viewer struct {
	a    *app
	s    *session.Session
	name string // the sandbox's, as it was given
	tty  *hostTerminal
	keys []byte // that leave it
}

// connect connects the two terminals by call, and leaves this process's as it was.
func (v *viewer) connect(ctx context.Context, call func(context.Context, session.TerminalStreams) (session.ExecResult, error)) error {
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
	comeBack := "to come back: workcell sessions attach " + v.name
	var launch *session.LaunchError
	switch {
	case errors.Is(err, session.ErrDetached):
		v.a.notice("detached; %s", comeBack)
		return nil
	case errors.As(err, &launch) && launch.Reason == session.LaunchNotFound:
		return fail(exitExecMissing, err, "name a program that the sandbox has: workcell sessions attach SANDBOX -- PROGRAM")
	case errors.Is(err, session.ErrTakenOver):
		return fail(exitExecProduct, session.ErrTakenOver, comeBack)
	case errors.Is(err, backend.ErrUnavailable) && res.ExecID != "":
		return fail(exitExecProduct, err, "what runs there continues while its sandbox does; "+comeBack)
	case err != nil:
		return err
	}
	return v.a.execStatus(v.s.Info().Limits, res)
}

// defaultDetachKeys are Docker's.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseDetachKeys reads keys as Docker writes them. No keys at all are the default ones, as they are there.
func parseDetachKeys(text string) ([]byte, error) {
	if text == "" {
		text = defaultDetachKeys
	}
	var keys []byte
	for _, name := range strings.Split(text, ",") {
		ctrl, isCtrl := strings.CutPrefix(name, "ctrl-")
		switch {
		case len(name) == 1:
			keys = append(keys, name[0])
		case name == "DEL":
			keys = append(keys, 0x7f)
		case isCtrl && len(ctrl) == 1 && strings.Contains(`@abcdefghijklmnopqrstuvwxyz[\]^_`, ctrl):
			keys = append(keys, ctrl[0]&0x1f)
		default:
			return nil, fmt.Errorf("invalid detach keys (%s): unknown character: '%s'", text, name)
		}
	}
	return keys, nil
}

// detachReader is what is typed, up to the detach keys, which end it. Their beginning is held back until it is clear that
// the rest does not follow.
type detachReader struct {
	r    io.Reader
	keys []byte
	held []byte // a beginning of keys
	out  []byte // to be passed on
	err  error  // what comes behind out
}

func newDetachReader(r io.Reader, keys []byte) *detachReader {
	return &detachReader{r: r, keys: keys}
}

// Read returns what was typed; io.EOF after the detach keys.
func (d *detachReader) Read(p []byte) (int, error) {
	for len(d.out) == 0 && d.err == nil {
		var buf [4096]byte
		n, err := d.r.Read(buf[:])
		d.take(buf[:n])
		if d.err == nil && err != nil {
			d.out, d.held, d.err = append(d.out, d.held...), nil, err
		}
	}
	if len(d.out) == 0 {
		return 0, d.err
	}
	n := copy(p, d.out)
	d.out = d.out[n:]
	return n, nil
}

func (d *detachReader) take(typed []byte) {
	for _, c := range typed {
		d.held = append(d.held, c)
		for !bytes.HasPrefix(d.keys, d.held) {
			d.out = append(d.out, d.held[0])
			d.held = d.held[1:]
		}
		if len(d.held) == len(d.keys) {
			d.err = io.EOF
			return
		}
	}
}
