package admincmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/otelsetup"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// Values of --on-exit and --transport.
const (
	onExitClose    = "close"
	onExitKeep     = "keep"
	transportStdio = "stdio"
	transportHTTP  = "http"
)

type mcpOptions struct {
	http   mcpHTTPFlags
	policy string // file path

	agents, workflows string // directories of tasks
	coding            app.CodingTasks

	transport string
	image     string
	runtime   frontmatter.Runtime
	network   backend.NetworkMode
	caches    []string // host caches readable by the sandboxes
	hosts     []string // allowed hosts of sandboxes without a network
	onExit    string
	exitGiven bool
	idle      time.Duration
}

func newMCPCmd(a *command) *cobra.Command {
	o := &mcpOptions{transport: transportStdio, network: backend.NetworkNone, onExit: onExitClose}
	const groups = cli.EngineFlags | cli.ImageFlags | cli.ModelFlags | cli.AgentFlags | cli.HostToolFlags |
		cli.AuditFlags | cli.PoolFlags
	cmd := a.Verb(groups, &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve sandboxes to MCP clients",
		Long: `Serve sandboxes to MCP clients such as coding agents, IDEs, and chat applications.

With the stdio transport, the client starts this command. When the client disconnects, the server exits and closes its
sandboxes, unless you pass --on-exit keep. With the http transport, multiple clients can connect. Unless the server
listens on a loopback address, you must set --token-file or WORKCELL_MCP_TOKEN. If either is set, clients without a
valid bearer token get status 401. The default URL is http://127.0.0.1:8765/mcp. To add the server to Claude Code, run:
claude mcp add workcell -- workcell mcp
In other clients, set the command to workcell and its arguments to ["mcp"].

Clients can open sandboxes, run commands in them, and read, write, and edit files. The tools are sandbox_run,
sandbox_open, sandbox_close, sandbox_exec, sandbox_exec_read, sandbox_exec_wait, sandbox_exec_write, sandbox_exec_kill,
sandbox_fs_write, sandbox_fs_edit, sandbox_fs_read, sandbox_fs_list, sandbox_fs_delete, get_files, cleanup_session,
session_status, task_status, task_result, and task_cancel. You cannot hide tools. With --agents, --workflows, or
--executors, clients also get execute_task. It requires a model provider's API key, unless --model replays recorded
answers. If a call takes longer than 45 seconds, it returns a task_id for task_result, and the work continues. Clients
cannot see or use the sandboxes of clients with another token.

By default, sandboxes have no network access, and clients cannot request it. To allow hosts, use --network-allow.
--policy limits commands, files, CPU, memory, and workspace size, and --allow-image limits images. Without --policy,
the limits are 10 MiB per file, 500 MiB per workspace, and 5 minutes per command. To allow longer commands, set
exec_timeout in the policy.`,
		Example: "  workcell mcp\n" +
			"  workcell mcp --policy guard.yaml --agents ~/agents --model anthropic/claude-sonnet-4-5\n" +
			"  workcell mcp --transport http --listen 127.0.0.1:8765\n" +
			"  workcell mcp --transport http --listen 0.0.0.0:8765 --token-file tokens --tls-cert cert.pem --tls-key key.pem",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.Config()
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("idle-timeout") {
				o.idle = cmp.Or(c.IdleTimeout, o.idle)
			}
			o.exitGiven = cmd.Flags().Changed("on-exit")
			return o.run(cmd.Context(), a)
		},
	})
	o.http.addTo(cmd)
	f := cmd.Flags()
	f.StringVar(&o.policy, "policy", "", "reject calls that break the rules in `FILE`; see docs/reference/guard-policy.md")
	f.StringVar(&o.agents, "agents", "",
		"`DIR`: directory containing agents (*.prompt) that execute_task and workflows can run")
	f.StringVar(&o.workflows, "workflows", "", "`DIR`: directory containing workflows (*.yaml) that execute_task can run")
	f.StringSliceVar(&o.coding.Agents, "executors", nil,
		"`AGENT[=MODEL]`: coding agents that execute_task can run: "+strings.Join(frontmatter.ExecutorAgents(), ", ")+
			"; for example claude=anthropic/claude-sonnet-4-5 (repeatable)")
	f.Float64Var(&o.coding.Budget, "budget-usd", 0,
		"maximum model cost in USD per task run by --executors; 0 means no limit")
	f.Var(cli.OneOf(&o.transport, transportStdio, transportHTTP), "transport", "how clients connect")
	f.StringVar(&o.image, "image", "", "`IMAGE`: image of the sandboxes (default: the image for --runtime)")
	f.Var(cli.OneOf(&o.runtime, frontmatter.Runtimes()...), "runtime", "language of the sandboxes (default python)")
	f.Var(cli.OneOf(&o.network, backend.NetworkNone, backend.NetworkBridge), "network", "network access of the sandboxes")
	f.StringArrayVar(&o.hosts, "network-allow", nil,
		"`HOST`: host that sandboxes may reach with --network none: NAME, *.NAME, NAME:PORT, or registry:NAME (repeatable)")
	f.IntVar(&a.Options.MaxSandboxes, "max-sandboxes", 64,
		"maximum number of open sandboxes for all clients; opening more fails with the error code capacity")
	f.StringArrayVar(&o.caches, "cache", nil,
		"`NAME`: name of a cache that the sandboxes can read, for example pip (repeatable)")
	f.Var(cli.OneOf(&o.onExit, onExitClose, onExitKeep), "on-exit", "close or keep the sandboxes when the server exits")
	f.Lookup("on-exit").DefValue += ", or keep with --transport http and a database"
	f.DurationVar(&o.idle, "idle-timeout", mcpserver.DefaultIdleTimeout, "close a sandbox after this idle time")
	return cmd
}

// serveFunc serves clients until ctx is done.
type serveFunc func(context.Context, *command, *mcpserver.Server) error

func (o *mcpOptions) run(ctx context.Context, a *command) error {
	if err := o.check(a); err != nil {
		return err
	}
	policy, err := guardPolicy(o.policy)
	if err != nil {
		return err
	}
	serve := serveFunc(o.serveStdio)
	if o.transport == transportHTTP {
		var end func()
		if serve, end, err = o.http.prepare(a); err != nil {
			return err
		}
		defer end()
	}
	return a.Observe(ctx, false, func(ctx context.Context, _ *otelsetup.Tracing) error {
		return o.host(ctx, a, policy, serve)
	})
}

// host serves clients until ctx ends. Servers with a shared database start again after losing it.
func (o *mcpOptions) host(ctx context.Context, a *command, policy mcpserver.Policy, serve serveFunc) (err error) {
	hosts, err := a.OpenHostTools(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hosts.Close()) }()
	place, err := a.State()
	if err != nil {
		return err
	}
	// Servers with the same database share their clients. When one server ends, the others still need the clients'
	// sandboxes.
	use := app.Use{
		Join: place.URL != "" && o.transport == transportHTTP, Waits: true,
		Pool: &session.Request{Network: o.network, Caches: o.caches, Ceiling: policy.Limits.Ceiling()},
	}
	if use.Join && !o.exitGiven {
		o.onExit = onExitKeep
	}
	for said := ""; ; {
		err := o.serve(ctx, a, use, hosts, policy, serve)
		if !use.Join || ctx.Err() != nil || !state.Passes(err) {
			return err
		}
		if why := err.Error(); why != said {
			said = why
			a.Logger().Warn("the server is not ready until it reaches its database", "error", err)
		}
		bound.Pause(ctx, time.Second)
	}
}

// serve serves clients until ctx is done, or the manager loses the ownership lease.
func (o *mcpOptions) serve(
	ctx context.Context, a *command, use app.Use, hosts *hosttools.Registry, policy mcpserver.Policy, serve serveFunc,
) (err error) {
	conf, err := a.Config()
	if err != nil {
		return err
	}
	m, err := a.OpenManager(ctx, use)
	if err != nil {
		return err
	}
	defer m.Done()
	ctx = m.Audited(ctx)
	closeManager := m.Close
	if o.onExit == onExitKeep {
		closeManager = m.Detach
	}
	defer func() { err = errors.Join(err, closeManager(context.WithoutCancel(ctx))) }()
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	go state.AwaitLost(ctx, m.Records, m.Owner(), lost) // without the lease, the manager cannot open sandboxes
	runner, err := a.TaskRunner(ctx, m, hosts, o.agents, o.workflows, o.coding)
	if err != nil {
		return err
	}
	defer runner.Close()
	opts := &mcpserver.Options{
		Sandbox: tools.Sandbox{
			Runtime: o.runtime, Image: o.image, Network: o.reach(), Cache: o.caches,
			// The policy limits it.
			Limits: frontmatter.Limits{ExecTimeout: frontmatter.Duration(conf.ExecTimeout)},
		},
		Policy: &policy, Tasks: runner.List(), RunTask: runner.Run, Diff: runner.Diff, OnClose: runner.ForgetRun,
		IdleTimeout: o.idle, Shared: use.Join, Version: a.Options.Version, Logger: a.Logger(),
	}
	srv, err := mcpserver.New(m.Manager, opts)
	if err != nil {
		return err
	}
	closeServer := srv.Close // does not close shared sandboxes
	if o.onExit == onExitKeep && o.exitGiven {
		closeServer = srv.Detach
	}
	defer func() { err = errors.Join(err, closeServer(context.WithoutCancel(ctx))) }()
	return serve(ctx, a, srv)
}

// reach returns the network access of the sandboxes.
func (o *mcpOptions) reach() frontmatter.Network {
	if len(o.hosts) > 0 {
		return frontmatter.Network{Allow: o.hosts}
	}
	return frontmatter.Network{Enabled: new(o.network == backend.NetworkBridge)}
}

func (o *mcpOptions) check(a *command) error {
	problems := rules.Hosts{Allow: o.hosts}.Problems()
	switch {
	case len(problems) > 0:
		return app.UsageError(fmt.Errorf("--network-allow: %w", problems[0]),
			"use example.org, *.example.org, example.org:8443, or registry:npm")
	case len(o.hosts) > 0 && o.network == backend.NetworkBridge:
		return app.UsageError(errors.New("--network-allow cannot be used with network access"),
			"remove --network "+string(backend.NetworkBridge))
	case a.Options.MaxSandboxes < 1:
		return app.InvalidFlag("max-sandboxes", a.Options.MaxSandboxes, "must be at least 1")
	case o.idle < time.Second:
		return app.InvalidFlag("idle-timeout", o.idle, "must be at least 1s")
	case o.transport == transportStdio && o.http.given():
		return app.UsageError(errors.New("--listen, --token-file, and other HTTP flags require --transport http"), "")
	}
	return cmp.Or(o.coding.Check(a.Options.Model), a.CheckModel(), a.CheckCaches(o.caches))
}

// serveStdio serves the client of this process. Nothing else may write to standard output. From here on,
// output of libraries bypassing os.Stdout and of child processes goes to standard error.
func (o *mcpOptions) serveStdio(ctx context.Context, a *command, srv *mcpserver.Server) error {
	out := a.Stdout
	if f, ok := out.(*os.File); ok {
		own, err := cli.TakeStdout(f, os.Stderr)
		if err != nil {
			return fmt.Errorf("cannot redirect standard output: %w", err)
		}
		defer own.Close() // the client hung up or does not read
		out = own
	}
	if err := srv.ServeStdio(ctx, a.Stdin, out); err != nil && ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

// guardPolicy returns the policy in a file. Without a file, it returns the default policy.
func guardPolicy(path string) (mcpserver.Policy, error) {
	if path == "" {
		return mcpserver.DefaultPolicy(), nil
	}
	src, err := os.ReadFile(path)
	if err != nil {
		return mcpserver.Policy{}, app.Fail(app.ExitInvalid, err, "pass a YAML file with --policy FILE")
	}
	p, err := mcpserver.ParsePolicy(path, src)
	if err != nil {
		err = app.Fail(app.ExitInvalid, err, "see docs/reference/guard-policy.md for the guard policy")
	}
	return p, err
}

// defaultMCPAddress is the default listen address of `mcp --transport http`.
const defaultMCPAddress = "127.0.0.1:8765"

// mcpTokenEnv is the environment variable for the token of a single owner.
const mcpTokenEnv = "WORKCELL_MCP_TOKEN"

// mcpHTTPFlags are the flags for HTTP.
type mcpHTTPFlags struct {
	listenFlags
	flags    *pflag.FlagSet
	origins  []string
	maxConns int
	rate     int
}

func (f *mcpHTTPFlags) addTo(cmd *cobra.Command) {
	fs := pflag.NewFlagSet("http", pflag.ContinueOnError)
	f.listenFlags.addTo(fs, defaultMCPAddress, " with --transport http", "; or set "+mcpTokenEnv)
	fs.StringArrayVar(&f.origins, "allow-origin", nil,
		"allow requests from web pages at `ORIGIN`, for example https://a.example (repeatable)")
	fs.IntVar(&f.maxConns, "max-connections", mcpserver.DefaultMaxConns, "maximum number of open connections; others wait")
	fs.IntVar(&f.rate, "max-rate", mcpserver.DefaultRate, "maximum number of requests per second for each client")
	f.flags = fs
	cmd.Flags().AddFlagSet(fs)
}

// given reports whether any of the flags is set.
func (f *mcpHTTPFlags) given() bool {
	given := false
	f.flags.VisitAll(func(flag *pflag.Flag) { given = given || flag.Changed })
	return given
}

// options returns the options of the server, with tokens and certificate.
func (f *mcpHTTPFlags) options(a *command) (*mcpserver.HTTPOptions, error) {
	for name, n := range map[string]int{"max-connections": f.maxConns, "max-rate": f.rate} {
		if n < 1 {
			return nil, app.InvalidFlag(name, n, "must be at least 1")
		}
	}
	opts := &mcpserver.HTTPOptions{Hosts: f.hosts, Origins: f.origins, MaxConns: f.maxConns, Rate: f.rate}
	tokens, err := f.tokens(a.Options.Env, a.Options.Env.Get(mcpTokenEnv))
	if err != nil {
		return nil, err
	}
	for _, t := range tokens {
		opts.Tokens = append(opts.Tokens, mcpserver.Token(t))
	}
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return nil, app.UsageError(fmt.Errorf("--listen %q: %w", f.listen, err), "for example --listen 127.0.0.1:8765")
	}
	if ip := net.ParseIP(host); len(opts.Tokens) == 0 && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, app.UsageError(fmt.Errorf("--listen %s: %w", f.listen, mcpserver.ErrNoToken),
			"pass --token-file, set "+mcpTokenEnv+", or listen on 127.0.0.1")
	}
	if opts.TLS, err = f.tls(); err != nil {
		return nil, err
	}
	if err := opts.Check(); err != nil {
		return nil, app.Fail(app.ExitInvalid, err, "check "+mcpTokenEnv+", --token-file, and --allow-origin")
	}
	return opts, nil
}

// prepare starts to listen, to find errors before using an engine. serve serves clients. Before and after
// serve, clients get 503, until end is called.
func (f *mcpHTTPFlags) prepare(a *command) (serve serveFunc, end func(), err error) {
	opts, err := f.options(a)
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return nil, nil, app.Fail(app.ExitFailed, err, "choose another address with --listen")
	}
	// Each server closes the listener. Between servers, clients can still connect.
	again := func() (net.Listener, error) {
		file, err := l.(*net.TCPListener).File()
		if err != nil {
			return nil, err
		}
		defer file.Close() // the listener has a copy
		return net.FileListener(file)
	}
	unready := func() (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			l, err := again()
			if err == nil {
				err = mcpserver.ServeUnready(ctx, l, opts)
			}
			done <- err
		}()
		return sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				a.Logger().Warn("clients were not told that the server is not ready", "error", err)
			}
		})
	}
	stop := unready()
	return func(ctx context.Context, a *command, srv *mcpserver.Server) error {
		stop()
		l, err := again()
		if err != nil {
			return err
		}
		next := make(chan func(), 1)
		unused := context.AfterFunc(ctx, func() { next <- unready() }) // running calls may still need time
		a.Notice("serving MCP on %s://%s%s", scheme(opts.TLS), l.Addr(), mcpserver.PathMCP)
		err = srv.ServeHTTP(ctx, l, opts) // nil after a signal, because supervisors end servers with SIGTERM
		if lost := context.Cause(ctx); state.Passes(lost) {
			err = lost
		}
		if unused() { // the server ended before ctx
			next <- unready()
		}
		stop = <-next
		return err
	}, func() { stop(); l.Close() }, nil // nothing was written to it
}
