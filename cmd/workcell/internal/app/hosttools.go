package app

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/hosttools/mcpsource"
	"github.com/workcell-dev/workcell/gateway/hosttools/serverfile"
)

// StartHostTools opens the registry for the agents of this command, which end closes, and starts the servers that are eager.
func (a *App) StartHostTools(ctx context.Context) (hosts *hosttools.Registry, end func(error) error, err error) {
	c, err := a.readHostTools()
	if err == nil && c != nil {
		sources := a.hostToolSources(c)
		if hosts, err = hosttools.New(&hosttools.Options{Policy: c.Policy, Log: a.Logger()}, sources...); err == nil {
			err = startEager(ctx, c, sources)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return hosts, func(err error) error {
		if hosts == nil {
			return err
		}
		return errors.Join(err, hosts.Close())
	}, nil
}

// startEager starts the servers that are to be there before they are needed.
func startEager(ctx context.Context, c *serverfile.Config, sources []hosttools.Source) error {
	var errs []error
	for i, server := range c.Servers {
		if server.Eager {
			_, err := sources[i].Tools(ctx)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// needHostTools refuses to begin a run whose agents name tools of servers that no file names.
func (h *Host) needHostTools() error {
	for _, name := range slices.Sorted(maps.Keys(h.docs)) {
		if doc := h.docs[name]; h.hosts == nil && doc.Sandbox != nil && doc.Sandbox.HostTools != nil {
			return Fail(ExitInvalid, doc.Problem("sandbox.host_tools", "", "no host tools file specified"), "pass --host-tools FILE")
		}
	}
	return nil
}

// OpenHostTools opens the registry of the file of --host-tools, which the caller closes; nil when there is none. Servers are
// started when they are needed.
func (a *App) OpenHostTools() (*hosttools.Registry, error) {
	c, err := a.readHostTools()
	if c == nil || err != nil {
		return nil, err
	}
	return hosttools.New(&hosttools.Options{Policy: c.Policy, Log: a.Logger()}, a.hostToolSources(c)...)
}

// readHostTools reads the operator's file; nil when none is named.
func (a *App) readHostTools() (*serverfile.Config, error) {
	file := cmp.Or(a.opts.HostTools, a.opts.Env.Get("WORKCELL_HOST_TOOLS"))
	if file == "" {
		return nil, nil
	}
	c, err := serverfile.Read(file, a.opts.Env)
	if err != nil {
		return nil, Fail(ExitInvalid, err, "")
	}
	return c, nil
}

func (a *App) hostToolSources(c *serverfile.Config) []hosttools.Source {
	var environ []string
	for _, name := range []string{"PATH", "HOME", "LANG"} {
		if value, ok := a.opts.Env(name); ok {
			environ = append(environ, name+"="+value)
		}
	}
	var sources []hosttools.Source
	for _, server := range c.Servers {
		sources = append(sources, mcpsource.New(server, &mcpsource.Options{Log: a.Logger(), Environ: environ}))
	}
	return sources
}

// HostToolProblems returns what an agent asks of host tools that are not there.
func HostToolProblems(ctx context.Context, r *hosttools.Registry, doc *frontmatter.Document) []error {
	if r == nil || doc.Sandbox == nil || doc.Sandbox.HostTools == nil {
		return nil
	}
	problems, err := r.Check(ctx, *doc.Sandbox.HostTools)
	if err != nil {
		return []error{doc.Problem("sandbox.host_tools", "", "%v", err)}
	}
	var errs []error
	for _, p := range problems {
		errs = append(errs, doc.Problem("sandbox.host_tools."+p.Field, p.Hint, "%s", p.Message))
	}
	return errs
}
