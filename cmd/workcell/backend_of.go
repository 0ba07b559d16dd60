package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/session"
)

// recorded returns the sandboxes that the records of all backends say are there, as far as people can name them. Backend
// and EngineID are those of the record.
func recorded(ctx context.Context, store state.Records) ([]session.Info, error) {
	recs, err := store.List(ctx, session.RecordCreating, session.RecordReady, session.RecordRemoving)
	list := make([]session.Info, len(recs))
	for i, rec := range recs {
		driver, _, _ := strings.Cut(rec.Engine, "-")
		list[i] = session.Info{ID: rec.ID, Key: rec.Key, Run: rec.Key.Run(), Backend: driver, EngineID: rec.Engine}
	}
	return list, err
}

// backendOf returns the backend that has the first of sandboxes that is recorded, and fallback when none is, or when
// --backend chose it. A name that sandboxes of several backends have means fallback's, if it has one.
func (a *app) backendOf(ctx context.Context, store state.Records, fallback string, sandboxes []string) (string, error) {
	if store == nil || a.opts.Backend != "" || len(sandboxes) == 0 {
		return fallback, nil
	}
	list, err := recorded(ctx, store)
	if err != nil {
		return "", err
	}
	for _, name := range sandboxes {
		var on []string
		for _, s := range namedSandboxes(list, name) {
			if !slices.Contains(on, s.Backend) {
				on = append(on, s.Backend)
			}
		}
		switch {
		case len(on) == 1:
			return on[0], nil
		case slices.Contains(on, fallback):
			return fallback, nil
		case len(on) > 1:
			return "", usageError(fmt.Errorf("%q matches sandboxes on %s", name, strings.Join(on, " and ")),
				"choose one: --backend "+strings.Join(on, " or --backend "))
		}
	}
	return fallback, nil
}

// byBackend groups sandboxes by the backend that backendOf returns for each, so that one command can be about all of them.
func (a *app) byBackend(ctx context.Context, use stateUse, sandboxes []string) (groups [][]string, err error) {
	if a.opts.Backend != "" || len(sandboxes) < 2 {
		return [][]string{sandboxes}, nil
	}
	place, err := a.state()
	if err != nil {
		return nil, err
	}
	store, err := a.openStore(ctx, place, use)
	if err != nil || store == nil {
		return [][]string{sandboxes}, err
	}
	defer store.Close() // it was only read
	conf, err := a.config()
	if err != nil {
		return nil, err
	}
	var backends []string
	for _, name := range sandboxes {
		on, err := a.backendOf(ctx, store, conf.Backend, []string{name})
		if err != nil {
			return nil, err
		}
		at := slices.Index(backends, on)
		if at < 0 {
			at, backends, groups = len(backends), append(backends, on), append(groups, nil)
		}
		groups[at] = append(groups[at], name)
	}
	return groups, nil
}

// whereElse adds the recorded engine of a sandbox to the error that this engine does not have it.
func (m *manager) whereElse(ctx context.Context, err error) error {
	var unknown *unknownSandbox
	if !errors.As(err, &unknown) || m.records == nil {
		return err
	}
	list, _ := recorded(ctx, m.records) // the error is true without them
	list = slices.DeleteFunc(list, func(s session.Info) bool { return s.EngineID == m.engine })
	for _, name := range unknown.names {
		if found := namedSandboxes(list, name); len(found) > 0 {
			return fail(exitNotFound, err,
				"the sandbox is on another engine: connect to that engine, or use --backend "+found[0].Backend)
		}
	}
	return err
}
