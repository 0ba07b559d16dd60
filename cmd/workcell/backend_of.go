package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/engines"
	"github.com/workcell-dev/workcell/internal/state"
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
	if store == nil || a.Backend != "" || len(sandboxes) == 0 {
		return fallback, nil
	}
	list, err := recorded(ctx, store)
	if err != nil {
		return "", err
	}
	isHere := a.isHere(ctx)
	for _, name := range sandboxes {
		found := namedSandboxes(list, name)
		here := slices.DeleteFunc(slices.Clone(found), func(s session.Info) bool { return !isHere(s) })
		if len(here) > 0 {
			found = here // not those of engines that the environment does not lead to
		}
		var on []string
		for _, s := range found {
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

// isHere returns what reports whether a recorded sandbox is on an engine that the environment leads to. One that does not answer
// is not.
func (a *app) isHere(ctx context.Context) func(session.Info) bool {
	ids := map[string]string{}
	return func(s session.Info) bool {
		if _, asked := ids[s.Backend]; !asked {
			ids[s.Backend], _ = a.engines().ID(ctx, s.Backend)
		}
		return s.EngineID == ids[s.Backend]
	}
}

// byBackend groups sandboxes by the backend that backendOf returns for each, so that one command can be about all of them.
func (a *app) byBackend(ctx context.Context, use stateUse, sandboxes []string) (groups [][]string, err error) {
	if a.Backend != "" || len(sandboxes) < 2 {
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

// whereElse adds to the error of a sandbox that m's engine does not have on which other one it is, as far as it is recorded.
func (a *app) whereElse(ctx context.Context, m *session.Manager, err error) error {
	var unknown *unknownSandbox
	if !errors.As(err, &unknown) || a.records == nil {
		return err
	}
	list, _ := recorded(ctx, a.records) // the error is true without them
	here := engines.NameOf(m.Backend())
	list = slices.DeleteFunc(list, func(s session.Info) bool { return s.EngineID == a.engine })
	for _, name := range unknown.names {
		switch found := namedSandboxes(list, name); {
		case len(found) == 0:
		case found[0].Backend == here:
			return fail(exitNotFound, err, fmt.Sprintf("the sandbox is on another %s engine; connect to the engine where it was opened", here))
		default:
			return fail(exitNotFound, err, fmt.Sprintf("the sandbox is on another backend; use --backend %s", found[0].Backend))
		}
	}
	return err
}
