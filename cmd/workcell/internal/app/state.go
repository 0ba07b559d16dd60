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

// StateUse specifies how much a command needs the records of sandboxes.
type StateUse int

const (
	StateNeeded StateUse = iota // the command must not create sandboxes without a record
	StateWanted                 // without records, the command uses the labels of the sandboxes
	StateUnused
)

// stateDir returns the directory for data with a longer life than a command.
func (a *App) stateDir() (state.Dir, error) { return state.Locate(a.opts.Env, a.opts.StateDir) }

// State returns the location of records and journals.
func (a *App) State() (state.Place, error) {
	return state.Find(a.opts.Env, a.opts.State, a.opts.StateDir)
}

// machine returns a name to distinguish this host from other hosts with the same database. It is empty if the state
// belongs to a single host.
func (a *App) machine() string {
	if cmp.Or(a.opts.State, a.opts.Env.Get(state.Variable)) == "" {
		return ""
	}
	id, _ := os.ReadFile("/etc/machine-id")
	name, _ := os.Hostname() // the last distinguishing property
	return cmp.Or(strings.TrimSpace(string(id)), name)
}

// openStore opens the records of sandboxes. It returns nil if the command runs without records.
func (a *App) openStore(ctx context.Context, place state.Place, use StateUse) (state.Records, error) {
	if use == StateUnused {
		return nil, nil
	}
	store, err := place.OpenRecords(ctx)
	if err != nil && use == StateWanted && ctx.Err() == nil && place.URL == "" {
		// With a database, only the records show the owners of sandboxes.
		a.withoutRecords(err)
		return nil, nil
	}
	return store, err
}

// withoutRecords prints a warning about missing records. Listing and removing sandboxes must work even
// with a full disk, a read-only directory, or a damaged file.
func (a *App) withoutRecords(err error) {
	a.Notice("sandbox records not available, using labels only: %v", err)
}

// OpenJournal opens the journals of runs.
func (a *App) OpenJournal(ctx context.Context) (runstore.Store, error) {
	place, err := a.State()
	if err != nil {
		return nil, err
	}
	return place.OpenJournal(ctx, a.keepsTranscripts())
}

// keepsTranscripts reports whether the conversations of finished steps are kept. Commands without need for a
// configuration work with an invalid configuration.
func (a *App) keepsTranscripts() bool {
	conf, err := a.Config()
	return err == nil && conf.KeepTranscripts > 0
}

// SaveEnv returns a function to store the variables of `sandbox open -e`, because later commands run in other
// processes. It stores them in the state file, which only the user can read. Other users could read them on the engine,
// and code in the sandbox could change them there.
func (m *Manager) SaveEnv(env map[string]string) func(context.Context, *session.Session) error {
	if len(env) == 0 {
		return nil
	}
	return func(ctx context.Context, s *session.Session) error { return m.Records.AddEnv(ctx, s.ID(), env) }
}

// LoadEnv returns the environment of a command: the variables of `sandbox open`, overridden by own.
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
