package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Get returns the open session of a key. If the key is not open, Get returns an error wrapping backend.ErrNotFound. Get
// creates no sandbox and does not wait.
func (m *Manager) Get(key Key) (*Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[key]; e != nil && e.session != nil && !e.session.isClosing() {
		return e.session, nil
	}
	return nil, sandbox.WrapError("Get", m.driver, "", custody.ErrNoSandbox)
}

// Lookup returns the session with the specified id in scope. If the sandbox was closed, Lookup returns an error
// wrapping backend.ErrClosed. If it died and has no session, the error wraps backend.ErrLost. The session of a dead
// sandbox can still be closed; its other calls return ErrLost. For an id of another scope, Lookup returns the same
// error as for an unknown id and logs the attempt. Without Options.Join, Lookup knows only ids of this manager and does
// not query the engine. Commands in a joined sandbox reach hosts only if the request set by WithBase has the same
// allowlist as the record.
func (m *Manager) Lookup(ctx context.Context, scope record.Scope, id string) (_ *Session, err error) {
	defer func() { err = sandbox.WrapError("Lookup", m.driver, "", err) }()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !record.ValidSandboxID(id) {
		return nil, custody.ErrNoSandbox
	}
	s := m.own(id)
	var rec record.Record
	switch {
	case s == nil:
		rec, err = m.store.Get(ctx, id)
	case s.isClosing():
		rec = record.Record{Key: s.key, State: record.Closed}
	default:
		rec = record.Record{Key: s.key, State: record.Ready}
	}
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return nil, custody.ErrNoSandbox
	case err != nil:
		return nil, err
	case rec.Key.Scope() != scope:
		m.log.WarnContext(ctx, "refused a sandbox ID of another scope",
			"asked_by", sanitize.Message(scope.String()), "sandbox", id, "owner", rec.Key.Scope().String())
		return nil, custody.ErrNoSandbox
	case rec.Reason == string(owner.EngineLost) && !rec.State.Live():
		return nil, fmt.Errorf("%w: its files are lost; open a new sandbox", backend.ErrLost)
	case s == nil && rec.State == record.Ready && m.opts.Join:
		if s, err = m.joinRecorded(ctx, rec); err != nil {
			return nil, err
		}
	case s == nil && rec.State == record.Ready && (rec.IdlePolicy == record.IdleStop || rec.KeepWorkspace):
		return nil, sanitize.NewError("the sandbox is stopped; open it again", backend.ErrClosed)
	case s == nil || rec.State != record.Ready:
		return nil, errGone
	}
	s.nameHosts(ctx)
	return s, nil
}

// nameHosts allows commands in a joined sandbox to reach the allowed hosts if the request in ctx has the same
// allowlist.
func (s *Session) nameHosts(ctx context.Context) {
	base, _ := BaseFromContext(ctx)
	if !s.m.opts.Join || !s.asIs || base.Egress.IsZero() {
		return
	}
	if made, _ := decodeShape(s.made); !made.Egress.Equal(base.Egress) {
		s.m.log.WarnContext(ctx, "commands cannot use the network, because the sandbox was opened with another allowlist; "+
			"configure all servers alike", "sandbox", s.id)
		return
	}
	s.control.SetHosts(base.Egress)
}

// errGone reports a closed sandbox in the caller's scope.
var errGone = sanitize.NewError(
	"the sandbox is closed and its files are deleted; open a new sandbox", backend.ErrClosed)

// InScope returns the open sessions of a scope, sorted by name.
func (m *Manager) InScope(scope record.Scope) []*Session {
	return m.inScope(func(s *Session) bool { return s.owned && s.key.Scope() == scope })
}

// inScope returns the open sessions for which want returns true, sorted by name.
func (m *Manager) inScope(want func(*Session) bool) []*Session {
	list := m.sessions(func(s *Session) bool { return want(s) && !s.isClosing() })
	slices.SortFunc(list, func(a, b *Session) int { return strings.Compare(a.key.Name, b.key.Name) })
	return list
}

// List describes the instance's sandboxes on the engine, including sandboxes of other processes. It also describes lost
// sandboxes of this manager. The result is in order of creation. If the store fails, List omits the store's data.
func (m *Manager) List(ctx context.Context) ([]Info, error) {
	found, err := m.b.List(ctx, backend.Filter{Instance: m.opts.Instance})
	if err != nil {
		return nil, sandbox.WrapError("List", m.driver, "", engineError(err))
	}
	own := map[string]*Session{}
	for _, s := range m.sessions(func(s *Session) bool { return s.owned && !s.isClosing() }) {
		own[s.id] = s
	}
	recorded, err := m.store.List(ctx)
	if err != nil {
		if ctx.Value(custody.Strict{}) != nil {
			return nil, sandbox.WrapError("List", m.driver, "", engineError(err))
		}
		m.log.WarnContext(ctx, "cannot read the records of sandboxes", "error", err)
	}
	recs := map[string]record.Record{}
	for _, rec := range recorded {
		recs[rec.ID] = rec
	}
	lost := maps.Clone(recs)
	maps.DeleteFunc(lost, func(id string, _ record.Record) bool { return own[id] != nil })
	list := m.unfound(ctx, found, lost)
	for _, engine := range found {
		if s := own[engine.SessionID]; s != nil {
			continue
		}
		rec := recs[engine.SessionID]
		engine = custody.Identify(rec, engine)
		key, err := record.ParseKey(engine.Key)
		if err != nil || !record.ValidSandboxID(engine.SessionID) {
			m.log.WarnContext(ctx, "skipped a sandbox with unreadable labels", "engine_id", engine.ID)
			continue
		}
		info := m.describe(engine, key)
		info.addRecord(rec)
		switch {
		case rec.State == record.Removing && rec.Expires.After(m.now()):
			info.State = StateKept
		case rec.State == record.Removing:
			info.State = StateClosed // removal is pending
		case rec.State == record.Creating && key.Namespace == record.NamespacePool && rec.EngineID != "":
			info.State = StatePooled
		case rec.State == record.Creating:
			info.State = StateCreated
		}
		list = append(list, info)
	}
	for _, s := range own {
		list = append(list, s.Info())
	}
	slices.SortFunc(list, func(a, b Info) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return list, nil
}

// unfound describes existing workspaces of sandboxes without an owner and without a container. These are named
// sandboxes and sandboxes of interrupted runs. Opening such a sandbox recreates it.
func (m *Manager) unfound(ctx context.Context, found []backend.Info, recs map[string]record.Record) []Info {
	for _, engine := range found {
		delete(recs, engine.SessionID)
	}
	var list []Info
	for _, rec := range recs {
		if !m.keeper.LeavesWorkspace(rec) {
			continue
		}
		if lives, err := m.store.Lives(ctx, rec.Owner); err != nil || lives {
			continue
		}
		if _, _, err := m.keeper.Find(ctx, rec.ID); !errors.Is(err, backend.ErrNotFound) {
			continue // recreated since the list was read
		}
		made, _ := decodeShape(rec.Request)
		info := m.describe(backend.Info{SessionID: rec.ID, Network: made.Network, Created: rec.Created}, rec.Key)
		info.addRecord(rec)
		list = append(list, info)
	}
	return list
}

// addRecord adds the fields found only in the record.
func (i *Info) addRecord(rec record.Record) {
	made, _ := decodeShape(rec.Request)
	i.IdlePolicy, i.IdleTimeout, i.Reason = rec.IdlePolicy, rec.Idle, rec.Reason
	i.Egress, i.Environment, i.OCIRuntime = made.Egress, made.Environment, made.OCIRuntime
}

// Settings returns the settings of the sandbox. Hosts, installed packages, and the OCI runtime are known only if the
// sandbox is open or recorded.
func (i Info) Settings() sandbox.Settings {
	return sandbox.Settings{
		Backend: i.Backend, Isolation: i.Isolation, OCIRuntime: i.OCIRuntime, Image: i.Image, User: i.User,
		WritableRoot: i.Root == backend.RootWritable, Limits: i.Limits, Network: i.Network, Egress: i.Egress,
		Mounts: i.Mounts, Environment: i.Environment,
	}
}

// CheckIsolation returns a backend.IsolationError if a new sandbox for req would be less isolated than req or Defaults
// require. Open performs the same check. With CheckIsolation, callers can report where the requirement comes from.
func (m *Manager) CheckIsolation(req Request) error {
	has, known := m.b.Capabilities().Isolation[cmp.Or(req.OCIRuntime, m.opts.Defaults.OCIRuntime)]
	if !known {
		return nil // Open returns the error of a missing OCI runtime
	}
	return m.isolated(backend.Info{Isolation: has}, req)
}

// isolated returns a backend.IsolationError if a sandbox is less isolated than a request or Defaults require.
func (m *Manager) isolated(engine backend.Info, req Request) error {
	wants := req.Isolation.Stricter(m.opts.Defaults.Isolation)
	if engine.Isolation.AtLeast(wants) {
		return nil
	}
	return &backend.IsolationError{Has: engine.Isolation, Wants: wants}
}

// describe returns the description of a sandbox from the engine's report.
func (m *Manager) describe(engine backend.Info, key Key) Info {
	state := StateStopped
	switch engine.State {
	case backend.StateRunning, backend.StatePaused:
		state = StateReady
	case backend.StateCreated:
		state = StateCreated
	}
	return Info{
		ID: engine.SessionID, Key: key, Run: key.Run(), State: state, Image: engine.Image, User: engine.User,
		Network: engine.Network, Mounts: engine.Mounts, Isolation: engine.Isolation, Root: engine.Root,
		Limits: engine.Limits, Workspace: engine.Workspace, RootBytes: engine.RootBytes,
		RootEnforcement: engine.RootEnforcement, Created: engine.Created, Workdir: backend.Workdir, Backend: m.driver,
		EngineID: engine.ID, Labels: engine.Labels,
	}
}
