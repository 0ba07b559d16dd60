package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// closeTogether is the maximum number of concurrent removals. Engines serialize much of this work anyway.
const closeTogether = 16

// pruneEvery is the number of closed runs after which a manager without a reaper deletes old records.
const pruneEvery = 100

// CloseSession closes the session of key. If the key is not open, it does nothing. If the sandbox is being created,
// CloseSession cancels the creation, and the waiting callers get backend.ErrClosed. If a sandbox of this manager is
// being opened again, because it was lost or is being rebuilt, CloseSession also removes the sandbox, unless
// opts.KeepWorkspace is set.
func (m *Manager) CloseSession(ctx context.Context, key Key, opts CloseOptions) error {
	m.mu.Lock()
	e := m.entries[key]
	if e == nil {
		m.mu.Unlock()
		return nil
	}
	if f := e.flight; f != nil {
		end := owner.Removed
		if opts.KeepWorkspace {
			end = ""
		}
		f.abandon(errSessionClosed, end)
		m.mu.Unlock()
		return sandbox.WrapError("Close", m.driver, "", wait(ctx, f.done))
	}
	m.mu.Unlock()
	if err := m.closeFor(ctx, e.session, opts.KeepWorkspace); err != nil || !e.session.reopening {
		return err
	}
	return m.CloseSession(ctx, key, opts)
}

// closeFor closes a session. If keepWorkspace is true, the key can be opened again with the same workspace.
func (m *Manager) closeFor(ctx context.Context, s *Session, keepWorkspace bool) error {
	if !keepWorkspace {
		return m.closeSession(ctx, s, owner.Gone, owner.Removed)
	}
	if err := m.keeper.CanKeep(ctx, s.engine); err != nil {
		return sandbox.WrapError("Close", m.driver, s.id, err)
	}
	return m.closeSession(ctx, s, owner.WorkspaceOnly, owner.Removed)
}

// CloseScope closes all sessions of a scope, including sandboxes that are still being created. If the scope is a run,
// closing is final: CloseScope also removes the sandboxes of the run's earlier processes, and later Open calls fail
// with backend.ErrClosed for at least an hour. Run ids are not reused. Sandboxes with a Request.Retention accept no
// more calls, but they are removed only when the retention period has passed. ctx does not limit the cleanup. Calling
// CloseScope again does nothing.
func (m *Manager) CloseScope(ctx context.Context, scope record.Scope) error {
	m.mu.Lock()
	before := len(m.sealed)
	if seals(scope) {
		m.sealed[scope] = m.now()
	}
	// Otherwise, the reaper prunes.
	prune := m.opts.ReapEvery < 0 && len(m.sealed) > before && len(m.sealed)%pruneEvery == 0
	var flights []*flight
	for key, e := range m.entries {
		if key.Scope() == scope && e.flight != nil {
			e.flight.abandon(fmt.Errorf("%w: run %s has ended", backend.ErrClosed, scope), owner.RunEnded)
			flights = append(flights, e.flight)
		}
	}
	m.mu.Unlock()
	sessions := m.sessions(func(s *Session) bool { return (s.owned || s.joined) && s.key.Scope() == scope })
	err := m.closeAll(ctx, sessions, owner.Retained)
	for _, f := range flights {
		<-f.done // returns soon: the context is canceled, and cleanup is bounded
	}
	if err == nil && slices.ContainsFunc(sessions, func(s *Session) bool { return s.reopening }) {
		return m.CloseScope(ctx, scope)
	}
	if seals(scope) {
		err = errors.Join(err, m.closeOrphans(context.WithoutCancel(ctx), scope))
	}
	if prune {
		m.prune(context.WithoutCancel(ctx))
	}
	return err
}

// seals reports whether closing a scope is final. Runs end only once, but a named sandbox can be opened again.
func seals(s record.Scope) bool { return s.Namespace != record.NamespaceUser }

// closeAll closes sessions concurrently and joins their errors.
func (m *Manager) closeAll(ctx context.Context, sessions []*Session, to owner.State) error {
	return errors.Join(bound.Each(closeTogether, len(sessions), func(i int) error {
		return m.closeSession(ctx, sessions[i], to, owner.RunEnded)
	})...)
}

// closeSession closes s once. why is the cause, and to is the state of the sandbox afterwards. Later callers wait for
// the first call and get the same result.
func (m *Manager) closeSession(ctx context.Context, s *Session, to owner.State, why owner.Event) error {
	if s.keepFresh {
		m.touch(ctx, s)
	}
	if s.control.BeginClose(always) {
		return m.finishClose(ctx, s, to, why)
	}
	if err := wait(ctx, s.closing); err != nil {
		return sandbox.WrapError("Close", m.driver, s.id, err)
	}
	return s.closeErr
}

// finishClose completes a close started by BeginClose. If to is owner.Ready, the sandbox keeps running. If to is
// owner.Retained, the rule for the end of a run decides the state.
func (m *Manager) finishClose(ctx context.Context, s *Session, to owner.State, why owner.Event) (err error) {
	ctx, span := s.start(context.WithoutCancel(ctx), telemetry.SpanClose)
	defer func() {
		err = sandbox.WrapError("Close", m.driver, s.id, err)
		telemetry.End(span, err)
		s.closeErr = err
		close(s.closing)
	}()
	s.control.Close()
	owed := false // the sandbox is still to be removed
	defer func() { m.unregister(s, owed) }()
	if to == owner.Retained {
		to = s.on(owner.RunEnded)
	}
	if to != owner.Ready && (s.owned || s.joined) { // closing a connection ends nothing
		m.log.InfoContext(ctx, "ending a sandbox and its processes",
			"sandbox", s.id, "key", s.key.String(), "reason", string(why))
		s.mu.Lock()
		s.why = why
		s.mu.Unlock()
	}
	mine, err := m.holds(ctx, s, to)
	if mine {
		m.dropGrants(s.id)
	}
	switch {
	case s.joined && to == owner.Gone:
		return m.keeper.RemoveHeld(ctx, s.id, why)
	case s.joined && to == owner.WorkspaceOnly:
		return m.keeper.Remove(ctx, s.id, false, why, false)
	case !mine:
		return err
	case to == owner.Ready:
		if rec := s.recordAs(record.Ready, s.expiry()); !s.wasLost() { // a loss is recorded already
			rec.Owner = ""
			m.keeper.Save(rec)
		}
	case to == owner.Suspended:
		return m.keeper.Suspend(ctx, s.recordAs(record.Ready, s.expiry()), s.engine.ID)
	case to == owner.Retained:
		rec := s.recordAs(record.Removing, m.now().Add(s.req.Retention))
		rec.Ended, owed = true, true
		m.keeper.Save(rec)
	case to == owner.WorkspaceOnly:
		return m.keeper.KeepWorkspace(ctx, s.recordAs(record.Ready, s.expiry()), s.engine.ID)
	default:
		rec := s.recordAs(record.Removing, m.now())
		rec.Ended = why != owner.Idle
		if !s.settled.Load() { // no caller received it, so it does not hide the loss of an earlier sandbox from Gone
			rec.EngineID = ""
		}
		if m.keeper.Save(rec) {
			return custody.ErrOvertaken
		}
		err := m.keeper.RemoveEngine(ctx, s.engine.ID, true)
		if err == nil && s.wasLost() { // the engine may have lost the sandbox but kept the workspace
			err = m.keeper.RemoveWorkspace(ctx, s.id)
		}
		if owed = err != nil; owed { // the reaper tries again
			return err
		}
		m.keeper.SaveClosed(rec)
		m.countRemoved(ctx, s.removalReason(why))
	}
	return nil
}

// removalReason returns the metric's reason for removing the sandbox of a closed session.
func (s *Session) removalReason(why owner.Event) string {
	switch {
	case s.wasLost():
		return telemetry.RemovedLost
	case why == owner.Idle:
		return telemetry.RemovedIdle
	}
	return telemetry.RemovedClosed
}

// countRemoved counts a removed sandbox.
func (m *Manager) countRemoved(ctx context.Context, reason string) {
	m.meters.removed.Add(ctx, 1, m.measured(telemetry.KeyReason.String(reason)))
	trace.SpanFromContext(ctx).AddEvent(telemetry.EventRemoved, trace.WithAttributes(telemetry.KeyReason.String(reason)))
}

// unregister forgets a closed session. If owed is true, the sandbox still exists and keeps its place.
func (m *Manager) unregister(s *Session, owed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.secondary, s)
	counted := m.byID[s.id] == s
	if counted {
		m.meters.active.Add(context.Background(), -1, m.measured())
		delete(m.byID, s.id)
	}
	if e := m.entries[s.key]; e != nil && e.session == s {
		delete(m.entries, s.key)
	}
	switch {
	case counted && owed:
		m.owed[s.id] = struct{}{}
	case counted:
		m.used--
	}
}

// removeOwed retries failed removals, except for retained sandboxes. Without a shared store, no other process can open
// the workspaces of lost sandboxes, so removeOwed removes them as well.
func (m *Manager) removeOwed(ctx context.Context) error {
	m.keeper.SaveAgain()
	recs, err := m.store.List(ctx, record.Removing, record.Ready)
	if err != nil {
		return sandbox.WrapError("Close", m.driver, "", err)
	}
	owed := m.owedIDs()
	var errs []error
	for _, rec := range recs {
		rule, due := custody.Due(rec, m.now(), "")
		switch {
		case rec.State == record.Ready && (m.shared || !rec.WorkspaceOnly() || rec.Owner != ""):
		case rec.State == record.Ready:
			errs = append(errs, sandbox.WrapError("Close", m.driver, rec.ID, m.keeper.Delete(ctx, rec)))
		case due && (rec.Owner == m.owner || slices.Contains(owed, rec.ID)):
			errs = append(errs, sandbox.WrapError("Close", m.driver, rec.ID, m.reclaim(ctx, rec, rule)))
		}
	}
	return errors.Join(errs...)
}

// owedIDs returns the ids of closed sessions with existing sandboxes.
func (m *Manager) owedIDs() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.owed))
}

// freePlaces stops counting sandboxes whose removal has succeeded.
func (m *Manager) freePlaces(ctx context.Context) {
	for _, id := range m.owedIDs() {
		rec, err := m.store.Get(ctx, id)
		if err == nil && rec.State != record.Removing || errors.Is(err, backend.ErrNotFound) {
			m.mu.Lock()
			if _, ok := m.owed[id]; ok { // a concurrent call may have freed it
				delete(m.owed, id)
				m.used--
			}
			m.mu.Unlock()
		}
	}
}

// expiry returns the time when an idle session expires. Zero means never. The caller must not hold s.mu.
func (s *Session) expiry() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle < 0 {
		return time.Time{}
	}
	return s.lastUse().Add(s.idle)
}

// lastUse returns the time of the sandbox's last use. If a call is running, lastUse returns the current time.
func (s *Session) lastUse() time.Time {
	use := s.control.Use()
	if use.Calls > 0 {
		return s.m.now()
	}
	return use.Last
}

// recordAs returns the session's record with the specified state and expiry. The caller stores it.
func (s *Session) recordAs(state record.State, expires time.Time) record.Record {
	used := s.control.Use().Last
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := record.Record{
		ID: s.id, Key: s.key, Engine: s.m.opts.Engine, EngineID: s.engine.ID, Owner: s.m.owner, Request: s.made, State: state,
		Created: s.created, LastUsed: used, Expires: expires, Idle: s.idle, IdlePolicy: s.policy, Retention: s.req.Retention,
		Reason: string(s.why),
	}
	custody.SetWorkspace(&rec, s.engine)
	s.recorded = used
	return rec
}
