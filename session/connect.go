package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Connect returns a session for a sandbox of this instance that another process opened. Closing the session only ends
// the connection. Commands get the image's environment and their own, but not the environment of the owner's request.
//
// If this manager owns the sandbox, Connect returns the existing session. If a named sandbox is stopped and has no
// owner, Connect starts it.
//
// If id is unknown, Connect returns an error wrapping backend.ErrNotFound. If the sandbox is not running, the error
// wraps backend.ErrLost. If the engine no longer has a named sandbox, the error is a VanishedError. If labels can be
// forged (backend.Capabilities.Forgeable) and Options.Store has no record of the sandbox, the error wraps
// backend.ErrPermission.
func (m *Manager) Connect(ctx context.Context, id string) (s *Session, err error) {
	ctx, span := telemetry.StartWith(ctx, m.tracers, telemetry.SpanConnect,
		telemetry.KeyBackend.String(m.driver), telemetry.Text(telemetry.KeySandboxID, id))
	defer func() {
		err = sandbox.WrapError("Connect", m.driver, "", err)
		telemetry.End(span, err)
	}()
	if m.ctx.Err() != nil {
		return nil, errManagerClosed
	}
	if own := m.own(id); own != nil {
		return own, nil
	}
	if s, err = m.tryConnect(ctx, id); errors.Is(err, backend.ErrLost) {
		s, err = m.tryConnect(ctx, id) // the first try may have found a sandbox just before a stop
	}
	if s != nil {
		span.SetAttributes(m.keyAttributes(s.key)...)
	}
	return s, err
}

// Look is like Connect, but it observes a sandbox of this or another manager without using it. Calls in the session do
// not count as use, so the sandbox can become idle. Look does not start a stopped sandbox: the error then wraps
// backend.ErrLost. Close the session soon, because the cleanup of sandboxes without an owner waits for connections.
func (m *Manager) Look(ctx context.Context, id string) (*Session, error) {
	engine, key, err := m.findUsed(ctx, id)
	var s *Session
	switch {
	case err != nil:
	case engine.State == backend.StatePaused:
		err = sandbox.ErrPaused
	default:
		if err = custody.Runs(engine); err == nil {
			s, err = m.connectSecondary(ctx, engine, key, false)
		}
	}
	return s, sandbox.WrapError("Look", m.driver, "", err)
}

// findUsed returns a sandbox. It returns no pooled sandbox, to keep it unused until Open assigns it.
func (m *Manager) findUsed(ctx context.Context, id string) (backend.Info, Key, error) {
	engine, key, err := m.keeper.Find(ctx, id)
	if errors.Is(err, backend.ErrNotFound) {
		err = m.vanished(ctx, id)
	}
	if err == nil && key.Namespace == record.NamespacePool {
		err = custody.ErrNoSandbox
	}
	return engine, key, err
}

// tryConnect makes one attempt to connect to a sandbox of another process.
func (m *Manager) tryConnect(ctx context.Context, id string) (*Session, error) {
	engine, key, err := m.findUsed(ctx, id)
	if err != nil {
		return nil, err
	}
	if engine, err = m.keeper.EnsureRunning(ctx, engine, key); err != nil {
		return nil, err
	}
	s, err := m.connectSecondary(ctx, engine, key, true)
	if err == nil && s.keepFresh {
		m.touch(ctx, s) // protects the sandbox from the sweep while it is used
	}
	return s, err
}

// connectSecondary connects to a sandbox without changing the owner. If counts is set, uses are recorded later.
func (m *Manager) connectSecondary(ctx context.Context, engine backend.Info, key Key, counts bool) (*Session, error) {
	s := m.newSession(key, foundRequest(engine), engine.SessionID)
	rec, err := m.store.Get(ctx, engine.SessionID)
	switch {
	case err == nil:
		s.idle, s.policy, s.keepFresh = custody.SecondaryIdle(rec.Idle), rec.IdlePolicy, counts
	case m.keeper.Forged(ctx, engine.SessionID):
		return nil, errForged
	}
	if engine, err = m.b.Get(ctx, engine.ID); err != nil { // List does not return the image's environment
		return nil, engineError(err)
	}
	s.req.Retention, s.made, engine = rec.Retention, rec.Request, custody.Identify(rec, engine)
	s.engine, s.created, s.owned = engine, engine.Created, false
	if err := s.connect(ctx); err != nil {
		s.control.Close()
		return nil, s.control.Explain(ctx, err)
	}
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.secondary[s] = struct{}{}
	}
	m.mu.Unlock()
	if closed {
		s.control.Close()
		return nil, errManagerClosed
	}
	return s, nil
}

// errForged reports a sandbox whose labels alone do not prove membership in this instance.
var errForged error = &sanitize.Error{Err: backend.ErrPermission,
	Text: "the sandbox has no record in this store, and other users of this engine can create one with its labels"}

// join returns a session for a recorded sandbox of another living process, for Options.Join. If the process has no
// running sandbox and is about to notice this, join returns custody.ErrInTransition.
func (m *Manager) join(ctx context.Context, rec record.Record, req Request) (*Session, error) {
	engine, err := m.keeper.FindRecorded(ctx, rec)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return nil, custody.ErrInTransition
	case err != nil:
		return nil, err
	case engine.State == backend.StatePaused:
		return nil, sandbox.ErrPaused
	case engine.State != backend.StateRunning:
		return nil, custody.ErrInTransition
	}
	if fields := conflicts(rec.Request, engine, req); fields != nil {
		return nil, &ConflictError{Key: rec.Key, Fields: fields}
	}
	s, err := m.sessionOf(ctx, rec, engine.ID, req)
	if err != nil {
		return nil, err
	}
	s.owned, s.joined = false, true
	if err := s.connect(ctx); err != nil {
		s.control.Close()
		if errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrLost) {
			return nil, custody.ErrInTransition
		}
		return nil, s.control.Explain(ctx, err)
	}
	m.touch(ctx, s)
	return s, nil
}

// Join returns the sessions of a scope, as InScope does. With Options.Join, it also returns sessions for sandboxes in
// the scope that belong to other processes of the instance. Their hosts are served as in Lookup. If a sandbox died and
// cannot be started, calls in the session fail with backend.ErrLost.
func (m *Manager) Join(ctx context.Context, scope record.Scope) ([]*Session, error) {
	if !m.opts.Join {
		return m.InScope(scope), nil
	}
	recs, err := m.store.List(ctx, record.Ready)
	if err != nil {
		return nil, sandbox.WrapError("Join", m.driver, "", err)
	}
	var dead []*Session
	open := m.sessions(func(s *Session) bool { return s.key.Scope() == scope && (s.owned || s.joined) && !s.wasLost() })
	for _, rec := range recs {
		if rec.Key.Scope() != scope || slices.ContainsFunc(open, func(s *Session) bool { return s.id == rec.ID }) {
			continue
		}
		s, err := m.joinRecorded(ctx, rec)
		gone := errors.Is(err, backend.ErrClosed) || errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrNotFound)
		switch {
		case err == nil && s.wasLost():
			dead = append(dead, s)
		case err != nil && !gone:
			return nil, sandbox.WrapError("Join", m.driver, rec.ID, err)
		}
	}
	list := m.inScope(func(s *Session) bool { return s.key.Scope() == scope && (s.owned || s.joined && !s.wasLost()) })
	for _, s := range list {
		s.nameHosts(ctx)
	}
	list = slices.DeleteFunc(list, func(s *Session) bool { // another process may have closed it unnoticed
		ready := slices.ContainsFunc(recs, func(rec record.Record) bool { return rec.ID == s.id })
		return s.owned && m.keeper.TakenOver(s.id) || !s.owned && !ready
	})
	list = append(list, dead...)
	slices.SortStableFunc(list, func(a, b *Session) int { return strings.Compare(a.key.Name, b.key.Name) })
	return slices.CompactFunc(list, func(a, b *Session) bool { return a.id == b.id }), nil
}

// errOtherEngine reports a sandbox to join on another engine. With Options.Join, all processes must use the same
// engine.
var errOtherEngine = sanitize.NewError(
	"the sandbox is on an engine that is not available to this process", backend.ErrUnavailable)

// joinRecorded opens a recorded, ready sandbox with the existing configuration and without allowed hosts. The sandbox
// must not be open in this manager.
func (m *Manager) joinRecorded(ctx context.Context, rec record.Record) (*Session, error) {
	if rec.Engine != m.opts.Engine {
		return nil, errOtherEngine
	}
	engine, _, err := m.keeper.Find(ctx, rec.ID)
	switch {
	case errors.Is(err, backend.ErrNotFound) && rec.WorkspaceOnly():
		return m.dead(rec, "it was removed; its files are kept"), nil
	case errors.Is(err, backend.ErrNotFound):
		return nil, errGone
	case err != nil:
		return nil, err
	}
	req := foundRequest(engine)
	req.Mode, req.IdleTimeout, req.ExecTimeout = OpenAsIs, rec.Idle, 0
	req, _ = asWas(rec, req) // the engine already has the sandbox with this configuration
	s, _, err := m.Open(ctx, rec.Key, req)
	switch {
	case err == nil && s.id != rec.ID:
		return nil, errGone
	case err != nil && engine.State == backend.StateStopped && ctx.Err() == nil:
		return m.dead(rec, "it was stopped and cannot be started: "+err.Error()), nil
	}
	return s, err
}

// dead returns a session of a stopped or missing sandbox. All calls in the session fail.
func (m *Manager) dead(rec record.Record, reason string) *Session {
	had, _ := decodeShape(rec.Request)
	engine := backend.Info{ID: rec.EngineID, SessionID: rec.ID, Image: had.Image, Network: had.Network}
	engine.User, engine.Limits, engine.Created = had.User, had.Limits, rec.Created
	s := m.newSession(rec.Key, foundRequest(engine), rec.ID)
	s.owned, s.engine, s.made, s.created = false, engine, rec.Request, rec.Created
	s.control.Lose(reason)
	return s
}

// joinedEvery is the minimum time between two records of the use of a joined sandbox.
const joinedEvery = 15 * time.Second

// recordUse records the use of a joined sandbox early enough to prevent the owner from treating the sandbox as idle.
func (s *Session) recordUse(ctx context.Context) {
	if !s.joined {
		return
	}
	used := s.lastUse()
	s.mu.Lock()
	due := s.idle >= 0 && used.Sub(s.recorded) >= min(s.idle/4, joinedEvery)
	s.mu.Unlock()
	if due {
		s.m.touch(ctx, s)
	}
}

// Remove removes a sandbox of this instance, even if another process owns it. If volumes is true, Remove also deletes
// the workspace. Otherwise, Remove keeps the workspace as CloseOptions.KeepWorkspace does. If only the workspace still
// exists, volumes has the same meaning: true deletes the workspace, and false keeps it for 30 more days. If id is
// unknown, Remove returns an error wrapping backend.ErrNotFound. During KeepInUse, the run removes the sandbox itself, so
// Gone does not report the removal.
func (m *Manager) Remove(ctx context.Context, id string, volumes bool) error {
	if own := m.own(id); own != nil {
		return m.closeFor(ctx, own, !volumes)
	}
	rec, err := m.store.Get(ctx, id) // a store failure does not prevent the removal
	ended := err == nil && m.isInUse(rec.Key.Scope())
	return sandbox.WrapError("Remove", m.driver, "", m.keeper.Remove(ctx, id, volumes, owner.Removed, ended))
}

// vanished returns the error for a sandbox missing on the engine. Either the sandbox never existed, or it can be
// recreated. A living owner may be recreating it at this moment.
func (m *Manager) vanished(ctx context.Context, id string) error {
	rec, err := m.store.Get(ctx, id)
	if err != nil || !m.keeper.LeavesWorkspace(rec) {
		return custody.ErrNoSandbox // even if the store fails
	}
	if lives, err := m.store.Lives(ctx, rec.Owner); err != nil || lives {
		return errors.Join(custody.ErrNoSandbox, err)
	}
	return &VanishedError{Key: rec.Key}
}
