package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/hosttools/mcpsource"
)

// needHostTools refuses to begin a run whose agents name tools of servers missing in the file.
func (h *host) needHostTools() error {
	for _, name := range slices.Sorted(maps.Keys(h.docs)) {
		if doc := h.docs[name]; h.hosts == nil && doc.Sandbox != nil && doc.Sandbox.HostTools != nil {
			return Fail(ExitInvalid, doc.Problem("sandbox.host_tools", "", "no host tools file specified"),
				"pass --host-tools FILE or, to resume a run, set WORKCELL_HOST_TOOLS")
		}
	}
	return nil
}

// OpenHostTools returns the registry for --host-tools, or nil without a file. The caller must close it. A server starts
// on first use. If eager is set, servers with `start: eager` start immediately.
func (a *App) OpenHostTools(ctx context.Context, eager bool) (*hosttools.Registry, error) {
	file := cmp.Or(a.opts.HostTools, a.opts.Env.Get("WORKCELL_HOST_TOOLS"))
	if file == "" {
		return nil, nil
	}
	c, err := mcpsource.ReadConfig(file, a.opts.Env)
	if err != nil {
		return nil, Fail(ExitInvalid, err, "")
	}
	var environ []string
	for _, name := range []string{"PATH", "HOME", "LANG"} {
		if value, ok := a.opts.Env(name); ok {
			environ = append(environ, name+"="+value)
		}
	}
	var sources, early []hosttools.Source
	for _, server := range c.Servers {
		source := mcpsource.New(server, &mcpsource.Options{Log: a.Logger(), Environ: environ})
		sources = append(sources, source)
		if eager && server.Eager {
			early = append(early, source)
		}
	}
	hosts, err := hosttools.New(&hosttools.Options{Policy: c.Policy, Log: a.Logger()}, sources...)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, source := range early {
		if _, err := source.Tools(ctx); err != nil {
			errs = append(errs, fmt.Errorf("host tools of server %s: %w", source.Name(), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, hosts.Close())
	}
	return hosts, nil
}

// HostToolProblems returns problems for nonexistent host tools in an agent's file.
func HostToolProblems(ctx context.Context, r *hosttools.Registry, doc *frontmatter.Document) error {
	if r == nil || doc.Sandbox == nil || doc.Sandbox.HostTools == nil {
		return nil
	}
	problems, err := r.Check(ctx, *doc.Sandbox.HostTools)
	if err != nil {
		return doc.Problem("sandbox.host_tools", "", "%v", err)
	}
	return sandboxProblems(doc, "host_tools.", problems)
}

// sandboxProblems returns the problems of fields below prefix in an agent's sandbox.
func sandboxProblems(doc *frontmatter.Document, prefix string, list hosttools.Problems) error {
	var errs []error
	for _, p := range list {
		errs = append(errs, doc.Problem("sandbox."+prefix+p.Field, p.Hint, "%s", p.Message))
	}
	return errors.Join(errs...)
}
