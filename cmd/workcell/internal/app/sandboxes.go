package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// Recorded returns the sandboxes in the records of all backends, as specified by users. Backend and EngineID come from
// the record.
func Recorded(ctx context.Context, store state.Records) ([]session.Info, error) {
	recs, err := store.List(ctx, record.Creating, record.Ready, record.Removing)
	list := make([]session.Info, len(recs))
	for i, rec := range recs {
		driver, _, _ := strings.Cut(rec.Engine, "-")
		list[i] = session.Info{ID: rec.ID, Key: rec.Key, Run: rec.Key.Run(), Backend: driver, EngineID: rec.Engine}
	}
	return list, err
}

// backendOf returns the backend of the first recorded sandbox in sandboxes. It returns fallback if none is recorded or
// --backend is set. If several backends have a sandbox with this name, it prefers fallback.
func (a *App) backendOf(ctx context.Context, store state.Records, fallback string, sandboxes []string) (string, error) {
	if store == nil || a.opts.Backend != "" || len(sandboxes) == 0 {
		return fallback, nil
	}
	list, err := Recorded(ctx, store)
	if err != nil {
		return "", err
	}
	for _, name := range sandboxes {
		var on []string
		for _, s := range NamedSandboxes(list, name) {
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
			return "", UsageError(fmt.Errorf("%q matches sandboxes on %s", name, strings.Join(on, " and ")),
				"choose one: --backend "+strings.Join(on, " or --backend "))
		}
	}
	return fallback, nil
}

// ByBackend groups arguments by backend (see backendOf), to allow one command to handle sandboxes on several backends.
// names returns the possible sandbox names in an argument.
func (a *App) ByBackend(
	ctx context.Context, use StateUse, args []string, names func(arg string) []string,
) (groups [][]string, err error) {
	if a.opts.Backend != "" || len(args) < 2 {
		return [][]string{args}, nil
	}
	place, err := a.State()
	if err != nil {
		return nil, err
	}
	store, err := a.openStore(ctx, place, use)
	if err != nil || store == nil {
		return [][]string{args}, err
	}
	defer store.Close() // opened for reading only
	conf, err := a.Config()
	if err != nil {
		return nil, err
	}
	var backends []string
	for _, arg := range args {
		on, err := a.backendOf(ctx, store, conf.Backend, names(arg))
		if err != nil {
			return nil, err
		}
		at := slices.Index(backends, on)
		if at < 0 {
			at, backends, groups = len(backends), append(backends, on), append(groups, nil)
		}
		groups[at] = append(groups[at], arg)
	}
	return groups, nil
}

// whereElse adds the recorded engine of a sandbox to the error for a sandbox missing on this engine.
func (m *Manager) whereElse(ctx context.Context, err error) error {
	unknown, ok := errors.AsType[*UnknownSandbox](err)
	if !ok || m.Records == nil {
		return err
	}
	list, _ := Recorded(ctx, m.Records) // without the list, the error is still correct
	list = slices.DeleteFunc(list, func(s session.Info) bool { return s.EngineID == m.Engine })
	for _, name := range unknown.Names {
		if found := NamedSandboxes(list, name); len(found) > 0 {
			return Fail(ExitNotFound, err,
				"the sandbox is on another engine: connect to that engine, or use --backend "+found[0].Backend)
		}
	}
	return err
}

// UnknownSandbox means the engine has no sandbox with this name.
type UnknownSandbox struct {
	Text  string
	Names []string // names not found
}

func (e *UnknownSandbox) Error() string { return e.Text + " " + backend.ErrNotFound.Error() }

func (e *UnknownSandbox) Unwrap() error { return backend.ErrNotFound }

// FindSandbox returns the only sandbox that matches a name given by the user.
func FindSandbox(list []session.Info, name string) (session.Info, error) {
	found := NamedSandboxes(list, name)
	switch len(found) {
	case 0:
		return session.Info{}, &UnknownSandbox{fmt.Sprintf("sandbox %q", name), []string{name}}
	case 1:
		return found[0], nil
	}
	keys := make([]string, len(found))
	for i, s := range found {
		keys[i] = s.Key.String()
	}
	return session.Info{}, UsageError(fmt.Errorf("%q matches %d sandboxes", name, len(found)),
		"use one of: "+strings.Join(keys, ", "))
}

// Find is like FindSandbox, for the sandboxes of the manager.
func (m *Manager) Find(ctx context.Context, name string) (session.Info, error) {
	list, err := m.List(ctx)
	if err != nil {
		return session.Info{}, err
	}
	return FindSandbox(list, name)
}

// NamedSandboxes returns the sandboxes of an instance that match a name given by the user. An id or key comes first,
// then a name or run, and then a prefix of an id or run.
func NamedSandboxes(list []session.Info, name string) []session.Info {
	for _, means := range []func(session.Info) bool{
		func(s session.Info) bool { return s.ID == name || s.Key.String() == name },
		func(s session.Info) bool { return s.Run != "" && s.Run == name || IsNamed(s.Key) && s.Key.ID == name },
		func(s session.Info) bool { return abbreviates(name, s.ID) || abbreviates(name, s.Run) },
	} {
		found := slices.DeleteFunc(slices.Clone(list), func(s session.Info) bool { return !means(s) })
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// abbreviates reports whether short is a prefix of id and long enough. An id with special characters is not from
// Workcell. It cannot be abbreviated, because commands in hints contain the id.
func abbreviates(short, id string) bool {
	return len(short) >= len("sbx_")+4 && strings.HasPrefix(id, short) && hint.Quote(id) == id
}

// IsNamed reports whether a key belongs to a sandbox that a user named.
func IsNamed(key session.Key) bool { return key.Namespace == record.NamespaceUser && key.User() == "" }
