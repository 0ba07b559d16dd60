package app

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/environment"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/gateway/services"
	"github.com/workcell-dev/workcell/session/cache"
)

// grantsDir returns the directory for additional hosts allowed by operators for running sandboxes.
func grantsDir(dir state.Dir) string { return dir.Path("egress") }

// AllowHosts allows a sandbox to reach more hosts until the process with the gateway exits.
func (m *Manager) AllowHosts(id string, hosts ...string) error {
	return egress.Allow(grantsDir(m.place.Dir), id, hosts...)
}

// egress returns the egress gateway for this command's sandboxes.
func (a *App) egress(dir state.Dir) (*egress.Gateway, error) {
	o := &egress.Options{Grants: grantsDir(dir), Log: a.Logger()}
	var err error
	if o.Services, err = a.Services(); err != nil {
		return nil, err
	}
	for _, text := range a.opts.EgressAllowPrivate {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, InvalidFlag("egress-allow-private", text, "for example 10.1.2.0/24")
		}
		o.AllowPrivate = append(o.AllowPrivate, p.Masked())
	}
	return egress.New(o)
}

// Services returns the configured HTTP services.
func (a *App) Services() (*services.Gateway, error) {
	conf, err := a.Config()
	if err != nil {
		return nil, err
	}
	return services.New(conf.Services, &services.Options{Log: a.Logger()})
}

// checkServices returns the problems of the services used by an agent, and missing credentials.
func (a *App) checkServices(doc *frontmatter.Document) error {
	g, err := a.Services()
	if err != nil || doc.Sandbox == nil {
		return err
	}
	errs := []error{ServiceProblems(g, doc)}
	for _, use := range doc.Sandbox.Services {
		errs = append(errs, g.Ready(use.Name))
	}
	return errors.Join(errs...)
}

// ServiceProblems returns services used by an agent and missing in the configuration.
func ServiceProblems(g *services.Gateway, doc *frontmatter.Document) error {
	if doc.Sandbox == nil {
		return nil
	}
	return sandboxProblems(doc, "", g.Problems(doc.Sandbox.Services))
}

// environments returns what installs packages for this command's sandboxes.
func (a *App) environments(dir state.Dir) (*environment.Builder, error) {
	b, err := environment.New(&environment.Options{
		Dir: dir.Path("environments"), PipIndex: a.opts.PipIndex, NpmRegistry: a.opts.NpmRegistry,
	})
	if err != nil {
		return nil, UsageError(err, "for example --pip-index https://pypi.example.org/simple")
	}
	return b, nil
}

// Caches returns the host's caches, including the configured caches.
func (a *App) Caches() (*cache.Store, error) {
	conf, err := a.Config()
	if err != nil {
		return nil, err
	}
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	var own []cache.Volume
	for _, name := range slices.Sorted(maps.Keys(conf.Caches)) {
		own = append(own, cache.Own(name, conf.Caches[name]))
	}
	store, err := cache.Open(dir.Path("caches"), own...)
	if err != nil {
		return nil, Fail(ExitInvalid, err,
			"check caches in the configuration; to find the file, run `workcell config show --origin`")
	}
	return store, nil
}

// CheckCaches returns an error for names of unknown caches.
func (a *App) CheckCaches(names []string) error {
	store, err := a.Caches()
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := store.Info(name); errors.Is(err, backend.ErrNotFound) {
			return UsageError(err, "run `workcell cache ls` to list caches")
		}
	}
	return nil
}
