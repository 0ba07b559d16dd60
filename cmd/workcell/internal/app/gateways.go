package app

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/environment"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/session/cache"
)

// GrantsDir holds what operators allow running sandboxes.
func GrantsDir(dir state.Dir) string { return filepath.Join(string(dir), "egress") }

// egress returns the gateway of this command's sandboxes.
func (a *App) egress(dir state.Dir) (*egress.Gateway, error) {
	o := &egress.Options{Grants: GrantsDir(dir), Log: a.Logger()}
	for _, text := range a.opts.EgressAllowPrivate {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, UsageError(fmt.Errorf("invalid value %q for --egress-allow-private", text), "for example 10.1.2.0/24")
		}
		o.AllowPrivate = append(o.AllowPrivate, p.Masked())
	}
	return egress.New(o)
}

// environments returns what installs packages for this command's sandboxes.
func (a *App) environments(dir state.Dir) (*environment.Builder, error) {
	b, err := environment.New(&environment.Options{Dir: filepath.Join(string(dir), "environments"), PipIndex: a.opts.PipIndex, NpmRegistry: a.opts.NpmRegistry})
	if err != nil {
		return nil, UsageError(err, "for example --pip-index https://pypi.example.org/simple")
	}
	return b, nil
}

// Caches returns the caches of this machine, those that are configured among them.
func (a *App) Caches() (*cache.Store, error) {
	conf, err := a.Config()
	if err != nil {
		return nil, err
	}
	dir, err := a.StateDir()
	if err != nil {
		return nil, err
	}
	var own []cache.Volume
	configured := conf.Caches
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		own = append(own, cache.Own(name, configured[name]))
	}
	store, err := cache.Open(filepath.Join(string(dir), "caches"), own...)
	if err != nil {
		return nil, Fail(ExitInvalid, err, "check caches in the configuration; to find the file, run `workcell config show --origin`")
	}
	return store, nil
}

// CheckCaches refuses names that no cache has.
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
