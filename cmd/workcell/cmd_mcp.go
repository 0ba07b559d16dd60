package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// Values of --on-exit.
const (
	onExitClose = "close"
	onExitKeep  = "keep"
)

type mcpOptions struct {
	engine engineFlags
	images imageFlags
	models modelFlags
	http   mcpHTTPFlags
	policy mcpPolicyFlags
	tasks  mcpTaskFlags

	transport string
	image     string
	runtime   string
	network   string
	onExit    string
	idle      time.Duration
}

func newMCPCmd(a *app) *cobra.Command {
	o := &mcpOptions{}
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve the sandboxes to MCP clients",
		Long: `Serve the sandboxes to MCP clients: coding agents, IDEs, chat applications. On stdio one client starts this command
and talks to it; its end is the end of the server and of its sandboxes. On http many clients may connect; off the
loopback addresses each of them needs a bearer token.`,
		Example: "  workcell mcp\n" +
			"  workcell mcp --policy guard.yaml --agents ~/agents --model anthropic/claude-sonnet-4-5\n" +
			"  workcell mcp --transport http --listen 127.0.0.1:8765\n" +
			"  workcell mcp --transport http --listen 0.0.0.0:8765 --token-file tokens --tls-cert cert.pem --tls-key key.pem",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) },
	}
	o.engine.addTo(cmd)
	o.images.addTo(cmd)
	o.models.addTo(cmd)
	o.http.addTo(cmd)
	o.policy.addTo(cmd)
	o.tasks.addTo(cmd)
	f := cmd.Flags()
	f.StringVar(&o.transport, "transport", "stdio", "stdio or http")
	f.StringVar(&o.image, "image", "", "image of the sandboxes (default that of --runtime)")
	f.StringVar(&o.runtime, "runtime", "", "python, node or bash: the language of the sandboxes (default python)")
	f.StringVar(&o.network, "network", "none", "none or bridge: what the sandboxes can reach")
	f.IntVar(&o.engine.maxSandboxes, "max-sandboxes", 64, "sandboxes that may be open at once, of all clients together; more are refused with capacity")
	f.StringVar(&o.onExit, "on-exit", onExitClose, "close or keep: what becomes of the sandboxes when the server ends")
	f.DurationVar(&o.idle, "idle-timeout", mcpserver.DefaultIdleTimeout, "idle time after which a sandbox is closed")
	return cmd
}

func (o *mcpOptions) run(ctx context.Context, a *app) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	policy, err := o.policy.read()
	if err != nil {
		return err
	}
	serve := o.serveStdio
	if o.transport == "http" {
		if serve, err = o.http.prepare(a); err != nil {
			return err
		}
	}
	ctx, tel := a.startTracing(ctx, o.models.traceContent)
	defer tel.Close(ctx)
	m, done, err := a.openManager(ctx, o.engine, o.images, stateNeeded)
	if err != nil {
		return err
	}
	defer done()
	defer func() { err = errors.Join(err, o.end(ctx, m)) }()
	runner, err := o.tasks.runner(a, m, o.models)
	if err != nil {
		return err
	}
	opts := &mcpserver.Options{
		Sandbox: o.sandbox(), Policy: &policy, Tasks: runner.list(), RunTask: runner.Run, IdleTimeout: o.idle, Version: buildVersion(), Logger: a.logger(),
	}
	srv, err := mcpserver.New(m, opts)
	if err != nil {
		return err
	}
	defer func() {
		clean := context.WithoutCancel(ctx)
		if o.onExit == onExitKeep {
			err = errors.Join(err, srv.Detach(clean))
			return
		}
		err = errors.Join(err, srv.Close(clean))
	}()
	return serve(ctx, a, srv)
}

func (o *mcpOptions) end(ctx context.Context, m *session.Manager) error {
	clean := context.WithoutCancel(ctx)
	if o.onExit == onExitKeep {
		return m.Detach(clean)
	}
	return m.Close(clean)
}

func (o *mcpOptions) check() error {
	switch {
	case o.transport != "stdio" && o.transport != "http":
		return usageError(fmt.Errorf("there is no transport %q", o.transport), "transports: stdio, http")
	case o.onExit != onExitClose && o.onExit != onExitKeep:
		return usageError(fmt.Errorf("--on-exit %q", o.onExit), "close or keep")
	case o.network != "none" && o.network != "bridge":
		return usageError(fmt.Errorf("--network %q", o.network), "none or bridge")
	case o.engine.maxSandboxes < 1:
		return usageError(fmt.Errorf("--max-sandboxes %d", o.engine.maxSandboxes), "at least 1")
	case o.idle < time.Second:
		return usageError(fmt.Errorf("--idle-timeout %v is shorter than a second", o.idle), "")
	case o.runtime != "" && !strings.Contains(" python node bash ", " "+o.runtime+" "):
		return usageError(fmt.Errorf("--runtime %q", o.runtime), "python, node or bash")
	case o.transport == "stdio" && o.http.given():
		return usageError(errors.New("--listen, --token-file and the like belong to --transport http"), "")
	}
	return nil
}

// sandbox describes the clients' sandboxes.
func (o *mcpOptions) sandbox() tools.Sandbox {
	return tools.Sandbox{
		Runtime: frontmatter.Runtime(o.runtime), Image: o.image, Network: frontmatter.Network{Enabled: new(o.network == "bridge")},
	}
}

// serveStdio serves the client that started this command. Nothing else may write to its standard output: what still
// holds it, a library that goes around os.Stdout or a child process, writes to standard error from here on.
func (o *mcpOptions) serveStdio(ctx context.Context, a *app, srv *mcpserver.Server) error {
	out := a.stdout
	if f, ok := out.(*os.File); ok {
		own, err := takeStdout(f, os.Stderr)
		if err != nil {
			return fmt.Errorf("cannot keep standard output clean: %w", err)
		}
		defer own.Close() // the client has hung up, or does not care any more
		out = own
	}
	if err := srv.ServeStdio(ctx, a.stdin, out); err != nil && ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}
