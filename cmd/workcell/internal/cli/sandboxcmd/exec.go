package sandboxcmd

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
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/interpreter"
	"github.com/workcell-dev/workcell/session/record"
)

// execFlags are the flags of `exec` and `attach`.
type execFlags struct {
	dir  string
	env  []string
	user string
}

// addTo adds the flags. Errors of other flags have the exit code of the command's own errors. dockerHint is the hint
// for Docker's -it.
func (f *execFlags) addTo(cmd *cobra.Command, dir, dockerHint string) {
	cmd.Flags().StringVarP(&f.dir, "workdir", "w", "",
		"`DIR`: directory to "+dir+" in; a relative path starts at /workspace")
	cli.EnvFlag(cmd.Flags(), &f.env)
	cmd.Flags().StringVarP(&f.user, "user", "u", "",
		"`UID[:GID]`: user to "+dir+" as, or root; must be the sandbox's user")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		unknown, ok := errors.AsType[*pflag.NotExistError](err)
		if ok && slices.Contains([]string{"i", "t", "interactive", "tty"}, unknown.GetSpecifiedName()) {
			return app.Fail(app.ExitExecProduct, err, dockerHint)
		}
		return execError(cmd.Parent().FlagErrorFunc()(cmd, err))
	})
}

// checkUser returns an error for a user other than the sandbox's user. The guest agent starts the commands and has no
// capabilities, so all commands run as the agent's user.
func (f *execFlags) checkUser(has string) error {
	if f.user == "" {
		return nil
	}
	want, err := record.ParseUser(f.user)
	if err != nil {
		return app.InvalidFlag("user", f.user, "use a numeric UID or UID:GID, for example 1000:1000")
	}
	if f.user != "root" && !strings.Contains(f.user, ":") { // any group
		want, has = f.user, strings.Split(has, ":")[0]
	}
	if want != has {
		return app.Fail(app.ExitExecProduct, fmt.Errorf("commands in this sandbox run as %s and cannot use --user %s",
			has, f.user),
			"open another sandbox: workcell sandbox open --user "+f.user)
	}
	return nil
}

type sandboxExecOptions struct {
	execFlags
	timeout  time.Duration
	noStdin  bool
	language string // interpreter language of a program; if empty, a command is run
}

func newSandboxExecCmd(a *command) *cobra.Command {
	o := &sandboxExecOptions{}
	cmd := a.Verb(cli.EngineFlags, &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] COMMAND [ARG…]",
		Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox, even while a run is using it. See workcell sandbox --help for the forms of SANDBOX.

COMMAND runs without a shell, with the standard input, output, and error of workcell. All arguments after it belong
to it, even if workcell has flags with the same name. The exit code is the command's, or 128+n if signal n ended it.
It is 124 if the command timed out (all its processes are killed), 125 if Workcell failed, 126 if the program cannot
be executed, and 127 if it was not found.

With --interpreter, COMMAND is the source code of a program. If you omit COMMAND, the program is read from standard
input. The interpreter keeps its variables between calls. It prints the value of the last expression, but no images.`,
		Example: "  workcell sandbox exec sbx_… -- python3 -m unittest\n" +
			"  workcell sandbox exec mybox -w src -e DEBUG=1 -- make < input.txt",
		Args: func(_ *cobra.Command, args []string) error {
			switch program := o.language != ""; {
			case program && (o.dir != "" || o.env != nil):
				return app.Fail(app.ExitExecProduct, errors.New("--interpreter cannot be used with --workdir or --env"),
					"the interpreter keeps both between calls; change them in the program, for example with os.chdir and os.environ")
			case program && (len(args) == 0 || len(args) > 2):
				return app.Fail(app.ExitExecProduct, errors.New("sandbox and at most one program required"),
					"put the program in quotes, or omit it to read standard input")
			case !program && len(args) < 2:
				return app.Fail(app.ExitExecProduct, errors.New("sandbox and command required"),
					"workcell sandbox exec SANDBOX -- COMMAND")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return execError(o.run(cmd, a, args)) },
	})
	o.addTo(cmd, "run",
		"standard input is always connected; for a terminal, run workcell sandbox attach SANDBOX [-- COMMAND]")
	cmd.Flags().DurationVar(&o.timeout, "exec-timeout", sandbox.MaxExecTimeout,
		"kill the command and its child processes after this time")
	cmd.Flags().Var(cli.OneOf(&o.language, interpreter.Python, interpreter.Node), "interpreter",
		"run a program in this interpreter, which keeps its variables between calls")
	cmd.Flags().BoolVarP(&o.noStdin, "no-stdin", "n", false, "run the command with empty standard input")
	return cli.BeforeCommand(cmd)
}

func (o *sandboxExecOptions) run(cmd *cobra.Command, a *command, args []string) error {
	own, err := cli.ParseEnv(a.Options.Env, o.env)
	if err != nil {
		return err
	}
	if o.timeout < sandbox.MinExecTimeout || o.timeout > sandbox.MaxExecTimeout {
		allowed := fmt.Sprintf("must be %s to %s", sandbox.MinExecTimeout, sandbox.MaxExecTimeout)
		return app.InvalidFlag("exec-timeout", o.timeout, allowed)
	}
	return a.inSandbox(func(ctx context.Context, m *app.Manager, s *session.Session, argv []string) error {
		if err := o.checkUser(s.Info().User); err != nil {
			return err
		}
		environment, err := m.LoadEnv(ctx, s, own)
		if err != nil {
			return err
		}
		if o.language != "" {
			return o.program(ctx, a, s, argv, environment)
		}
		streams := sandbox.Streams{Stdin: a.Stdin, Stdout: a.Stdout, Stderr: a.Stderr}
		if o.noStdin {
			streams.Stdin = nil
		}
		res, err := s.Stream(ctx, sandbox.ExecRequest{Argv: argv, Dir: o.dir, Env: environment, Timeout: o.timeout}, streams)
		if err != nil {
			return err
		}
		if res.Leaked {
			a.Notice("processes of the command keep running until the sandbox ends (%s); to kill them, "+
				"run `workcell sandbox kill %s %s`", app.Ends(s.Info(), nil), args[0], res.ExecID)
		}
		return a.execStatus(res)
	})(cmd, args)
}

// printedBytes is the number of bytes printed of the beginning, and of the end, of a program's output.
const printedBytes = 512 << 10 // maximum

// program runs a program in an interpreter of the sandbox.
func (o *sandboxExecOptions) program(
	ctx context.Context, a *command, s *session.Session, args []string, environment map[string]string,
) error {
	if len(args) == 0 {
		code, err := a.ReadStdin(ctx, sandbox.MaxStdinBytes)
		if err != nil {
			return err
		}
		args = []string{string(code)}
	}
	res, err := interpreter.Run(ctx, s.Sandbox, interpreter.Request{
		Language: o.language, Code: args[0], Exec: sandbox.ExecRequest{
			Timeout: o.timeout, Env: environment, HeadBytes: printedBytes, TailBytes: printedBytes,
		},
	})
	if err != nil {
		return err
	}
	if _, err := a.Stdout.Write(res.Stdout.Bytes()); err != nil {
		return err
	}
	if _, err := a.Stderr.Write(res.Stderr.Bytes()); err != nil {
		return err
	}
	if res.Text != "" {
		if _, err := fmt.Fprintln(a.Stdout, res.Text); err != nil {
			return err
		}
	}
	for _, out := range []sandbox.Output{res.Stdout, res.Stderr} {
		if out.Omitted > 0 {
			a.Notice("%d bytes of output omitted; the full output is in %s in the sandbox", out.Omitted, out.Path)
		}
	}
	if res.Lost {
		a.Notice("variables of earlier programs are lost because the interpreter was stopped")
	}
	if res.Status == sandbox.ExecTimedOut {
		a.Notice("program timed out after %s and was interrupted", res.Timeout)
		return app.ExitWith(app.ExitExecTimeout)
	}
	return a.execStatus(res.ExecResult)
}

// execStatus converts the result of a command to this command's exit code. It prints details that the exit code does
// not show to standard error.
func (a *command) execStatus(res sandbox.ExecResult) error {
	if res.Limit != "" {
		a.Notice("%s", res.Limit)
	}
	switch res.Status {
	case sandbox.ExecTimedOut:
		a.Notice("command timed out after %s; all its processes were killed", res.Timeout)
		return app.ExitWith(app.ExitExecTimeout)
	case sandbox.ExecQuotaKilled:
		a.Notice("command killed: no space left; delete files, for example with `workcell sandbox rm SANDBOX:PATH`")
	case sandbox.ExecKilled:
		a.Notice("command killed by another process")
	}
	if res.Signal != "" {
		return app.ExitWith(app.ExitSignalBase + 1 + slices.Index(sandbox.Signals(), res.Signal))
	}
	if res.ExitCode != 0 {
		return app.ExitWith(res.ExitCode)
	}
	return nil
}

// execError sets exit codes for workcell's own errors, to keep them distinct from the exit codes of commands.
func execError(err error) error {
	if err == nil || app.IsResult(err) {
		return err
	}
	code := app.ExitExecProduct
	_, todo := app.Classify(err)
	if launch, ok := errors.AsType[*sandbox.LaunchError](err); ok {
		switch launch.Reason {
		case sandbox.LaunchNotFound:
			code = app.ExitExecMissing
		case sandbox.LaunchNotExecutable:
			code = app.ExitExecNoRun
		}
		if hint.Of(err) == nil {
			todo = ""
		}
	}
	return app.Fail(code, err, todo)
}

// defaultTerm is the TERM value for the command if this process does not know the terminal type.
const defaultTerm = "xterm"

type sandboxAttachOptions struct {
	execFlags
	detachKeys string
	another    bool
}

func newSandboxAttachCmd(a *command) *cobra.Command {
	o := &sandboxAttachOptions{}
	cmd := a.Verb(cli.EngineFlags, &cobra.Command{
		Use:   "attach [flags] SANDBOX [--] [COMMAND [ARG…]]",
		Short: "Open a terminal in a sandbox",
		Long: `Open a terminal in a sandbox, even while a run is using it. Job control, Ctrl-C, full-screen programs, and
window resizing work as in any terminal. See workcell sandbox --help for the forms of SANDBOX.

Without COMMAND, attach joins the latest existing terminal, shows its last output again, and detaches its other
client. If no terminal exists, it starts a shell: $SHELL of the sandbox, the shell in /etc/passwd unless that is sh, or
the first available of bash, zsh, ash, and sh. If you pass COMMAND, --new, -w, or -e, attach always opens a new
terminal.

After you press the detach keys, or if attach exits early, the program keeps running, and you can attach again. It is
killed if its terminal is unused for an hour. Until then, ` + "`workcell sandbox logs`" + ` shows its output.

Sandbox output is written to your terminal unchanged, including control sequences. The exit code is the command's, as
with exec, or 0 after the detach keys.`,
		Example: "  workcell sandbox attach mybox\n  workcell sandbox attach mybox bash\n" +
			"  workcell sandbox attach mybox --detach-keys ctrl-x,x -- python3 -q",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return app.Fail(app.ExitExecProduct, errors.New("sandbox required"), "workcell sandbox attach SANDBOX [COMMAND]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return execError(o.run(cmd, a, args)) },
	})
	o.addTo(cmd, "start", "attach always uses a terminal: workcell sandbox attach SANDBOX [-- COMMAND]")
	cmd.Flags().StringVar(&o.detachKeys, "detach-keys", defaultDetachKeys,
		"`KEYS`: keys that detach: characters, ctrl-CHARACTER, or DEL, separated by commas")
	cmd.Flags().BoolVar(&o.another, "new", false, "open a new terminal even if one exists")
	return cli.BeforeCommand(cmd)
}

func (o *sandboxAttachOptions) run(cmd *cobra.Command, a *command, args []string) error {
	keys, err := parseDetachKeys(o.detachKeys)
	if err != nil {
		return app.UsageError(err, "use characters, ctrl-a to ctrl-z, ctrl-@ [ \\ ] ^ _, or DEL, for example ctrl-p,ctrl-q")
	}
	own, err := cli.ParseEnv(a.Options.Env, o.env)
	if err != nil {
		return err
	}
	tty, err := cli.NewHostTerminal(a.Stdin, a.Stdout)
	if err != nil {
		return app.UsageError(err, "to run a command without a terminal: workcell sandbox exec SANDBOX -- COMMAND")
	}
	return a.inSandbox(func(ctx context.Context, m *app.Manager, s *session.Session, argv []string) error {
		if err := o.checkUser(s.Info().User); err != nil {
			return err
		}
		v := &viewer{a: a, name: args[0], tty: tty, keys: keys}
		if len(argv) == 0 && !o.another && len(o.env) == 0 && o.dir == "" {
			if execID, err := openTerminal(ctx, s); err != nil {
				return err
			} else if execID != "" {
				a.Notice("joined the terminal of %s; use --new to open another", execID)
				return v.connect(ctx, func(ctx context.Context, at sandbox.TerminalStreams) (sandbox.ExecResult, error) {
					return s.Command(execID).Attach(ctx, tty.Size(), at)
				})
			}
		}
		environment, err := m.LoadEnv(ctx, s, own)
		if err != nil {
			return err
		}
		environment["TERM"] = cmp.Or(environment["TERM"], a.Options.Env.Get("TERM"), defaultTerm)
		return v.connect(ctx, func(ctx context.Context, at sandbox.TerminalStreams) (sandbox.ExecResult, error) {
			return s.Terminal(ctx, sandbox.TerminalRequest{Argv: argv, Dir: o.dir, Env: environment, Size: tty.Size()}, at)
		})
	})(cmd, args)
}

// openTerminal returns the id of the latest command on a terminal, or an empty string.
func openTerminal(ctx context.Context, s *session.Session) (execID string, err error) {
	known, err := s.Commands(ctx)
	for _, st := range known {
		if st.Terminal && !st.Done() {
			execID = st.ExecID
		}
	}
	return execID, err
}

// viewer connects this process's terminal to a terminal in a sandbox.
type viewer struct {
	a    *command
	name string // sandbox name as specified by the user
	tty  *cli.HostTerminal
	keys []byte // detach keys
}

// connect connects the two terminals with call, and restores this process's terminal afterwards.
func (v *viewer) connect(
	ctx context.Context, call func(context.Context, sandbox.TerminalStreams) (sandbox.ExecResult, error),
) error {
	res, err := func() (sandbox.ExecResult, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		v.a.Terminal.Store(v.tty)
		defer v.a.RestoreTerminal() // runs after a panic too
		if err := v.tty.Raw(); err != nil {
			return sandbox.ExecResult{}, err
		}
		res, err := call(ctx, sandbox.TerminalStreams{
			Stdin: &detachReader{r: v.tty.In, keys: v.keys}, Stdout: v.tty.Out, Resize: v.tty.WatchSize(ctx),
		})
		if err != nil && res.ExecID != "" {
			v.tty.Leave()
		}
		return res, err
	}()
	comeBack := "to attach again, run: workcell sandbox attach " + v.name
	var launch *sandbox.LaunchError
	switch {
	case errors.Is(err, sandbox.ErrDetached):
		v.a.Notice("detached; %s", comeBack)
		return nil
	case errors.As(err, &launch) && launch.Reason == sandbox.LaunchNotFound:
		return app.Fail(app.ExitExecMissing, err,
			"specify a program that exists in the sandbox: workcell sandbox attach SANDBOX -- PROGRAM")
	case errors.Is(err, sandbox.ErrTakenOver):
		v.a.Notice("%v; %s", sandbox.ErrTakenOver, comeBack)
		return nil
	case errors.Is(err, backend.ErrUnavailable) && res.ExecID != "":
		return app.Fail(app.ExitExecProduct, err, "the program keeps running as long as its sandbox does; "+comeBack)
	case err != nil:
		return err
	}
	return v.a.execStatus(res)
}

// defaultDetachKeys are Docker's default detach keys.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseDetachKeys parses keys in Docker's format. An empty text means the default keys, as in Docker.
func parseDetachKeys(text string) ([]byte, error) {
	text = cmp.Or(text, defaultDetachKeys)
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

// detachReader reads the typed input until the detach keys. It holds back a prefix of the keys until another key
// follows.
type detachReader struct {
	r    io.Reader
	keys []byte
	held []byte // prefix of keys
	out  []byte // pending output
	err  error  // returned after out
}

// Read returns the typed input. After the detach keys, it returns io.EOF.
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
