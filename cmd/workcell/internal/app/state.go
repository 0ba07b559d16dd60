package app

import (
	"cmp"
	"context"
	"maps"
	"os"
	"strings"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// StateUse is how much a command needs the records of sandboxes.
type StateUse int

const (
	StateNeeded StateUse = iota // nothing may be made that is not recorded
	StateWanted                 // without them the labels on the sandboxes must do
	StateUnused
)

// StateDir returns the directory for what must outlive a command.
func (a *App) StateDir() (state.Dir, error) { return state.Locate(a.opts.Env, a.opts.StateDir) }

// State returns where records and journals are kept.
func (a *App) State() (state.Place, error) {
	return state.Find(a.opts.Env, a.opts.State, a.opts.StateDir)
}

// databaseVariables returns the variables by which another process gets to the same database.
func (a *App) databaseVariables(place state.Place) (vars []string) {
	if place.URL == "" {
		return nil
	}
	for _, name := range []string{
		"PGPASSFILE", "PGPASSWORD", "PGSERVICE", "PGSERVICEFILE", "PGSSLMODE", "PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY", "PGUSER", "PGHOST", "PGPORT",
	} {
		if v, ok := a.opts.Env(name); ok {
			vars = append(vars, name+"="+v)
		}
	}
	return append(vars, state.Variable+"="+place.URL)
}

// machine returns what tells this machine from others that share its database, where its sandboxes have to be told
// apart; empty where the state is of one machine anyway.
func (a *App) machine() string {
	if cmp.Or(a.opts.State, a.opts.Env.Get(state.Variable)) == "" {
		return ""
	}
	id, err := os.ReadFile("/etc/machine-id")
	if name := strings.TrimSpace(string(id)); err == nil && name != "" {
		return name
	}
	name, _ := os.Hostname() // the last thing to tell them apart by
	return name
}

// openStore opens the records of sandboxes; nil when the command does without.
func (a *App) openStore(ctx context.Context, place state.Place, use StateUse) (state.Records, error) {
	if use == StateUnused {
		return nil, nil
	}
	store, err := place.OpenRecords(ctx)
	if err != nil && use == StateWanted && ctx.Err() == nil && place.URL == "" { // a database knows whose the sandboxes are
		a.withoutRecords(err)
		return nil, nil
	}
	return store, err
}

// withoutRecords warns that a command does without the records: with a full disk, a directory that cannot be written or
// a damaged file it must still be possible to see and remove sandboxes.
func (a *App) withoutRecords(err error) {
	a.Notice("sandbox records not available, using labels only: %v", err)
}

// OpenJournal opens the journals of runs.
func (a *App) OpenJournal(ctx context.Context) (runstore.Store, error) {
	place, err := a.State()
	if err != nil {
		return nil, err
	}
	return place.OpenJournal(ctx)
}

// SaveEnv keeps what `sandbox open -e` set: later commands come from other processes. It lies in the state file, which
// is the user's alone: on the engine others could read it, and what lies in the sandbox belongs to the code there.
func (m *Manager) SaveEnv(env map[string]string) func(context.Context, *session.Session) error {
	if len(env) == 0 {
		return nil
	}
	return func(ctx context.Context, s *session.Session) error { return m.Records.AddEnv(ctx, s.ID(), env) }
}

// LoadEnv returns the environment of a command: what the sandbox was opened with, and own over it.
func (m *Manager) LoadEnv(ctx context.Context, s *session.Session, own map[string]string) (map[string]string, error) {
	if m.Records == nil {
		m.app.Notice("variables of `sandbox open -e` are not available without sandbox records")
		return own, nil
	}
	env, err := m.Records.Env(ctx, s.ID())
	if err != nil {
		return nil, err
	}
	maps.Copy(env, own)
	return env, nil
}
