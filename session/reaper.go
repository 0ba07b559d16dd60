package session

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// reapTogether is the maximum number of concurrent checks of sessions.
const reapTogether = 8

// reapLoop searches for idle sessions until the manager is closed.
func (m *Manager) reapLoop() {
	m.sweep(m.ctx)
	for bound.Pause(m.ctx, m.opts.ReapEvery) {
		m.reap(m.ctx)
	}
}

// reap closes idle sessions, sweeps, and deletes old records.
func (m *Manager) reap(ctx context.Context) {
	owned := m.sessions(func(s *Session) bool { return s.owned })
	bound.Each(reapTogether, len(owned), func(i int) error {
		m.reapSession(ctx, owned[i])
		return nil
	})
	for _, s := range m.sessions(func(s *Session) bool { return s.keepFresh }) {
		m.touch(ctx, s)
	}
	for _, s := range m.sessions(func(s *Session) bool { return s.joined }) {
		if m.isInUse(s.key.Scope()) {
			s.control.Touch() // recordUse then tells the owner
		}
		_, idle := s.idleFor(m.now())
		if over := idle || s.wasLost(); over && s.control.BeginClose(uncalled) {
			_ = m.finishClose(ctx, s, owner.Ready, owner.Idle) // only closes an unused connection
			continue
		}
		s.recordUse(ctx)
	}
	m.keeper.SaveAgain()
	m.sweep(ctx)
	m.prune(ctx)
}

// KeepInUse keeps the open sandboxes of a scope in use until release is called, for example while a run executes. No
// call has to be running in them. After release, the idle timeouts start again. Sandboxes of other processes are kept
// in use only while they are joined.
func (m *Manager) KeepInUse(scope record.Scope) (release func()) {
	change := func(by int) {
		m.mu.Lock()
		if m.inUse[scope] += by; m.inUse[scope] == 0 {
			delete(m.inUse, scope)
		}
		m.mu.Unlock()
		for _, s := range m.InScope(scope) { // the reaper may be checking them
			s.control.Touch()
		}
	}
	change(1)
	return sync.OnceFunc(func() { change(-1) })
}

// isInUse reports whether a caller of KeepInUse uses a scope.
func (m *Manager) isInUse(scope record.Scope) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inUse[scope] > 0
}

// reapSession closes s if it is idle. A sandbox with a running process is not idle. If the guest does not answer, the
// next round tries again.
func (m *Manager) reapSession(ctx context.Context, s *Session) {
	if m.isInUse(s.key.Scope()) {
		s.control.Touch()
		m.touch(ctx, s)
		return
	}
	elsewhere := s.UsedElsewhere(ctx)
	used, idle := s.idleFor(m.now())
	if elsewhere || !idle {
		m.touch(ctx, s)
		return
	}
	busy, err := s.control.Busy(ctx)
	switch {
	case errors.Is(err, backend.ErrLost): // not reopened since the loss: remove the leftovers
	case err != nil:
		m.log.WarnContext(ctx, "cannot check whether a sandbox is idle", "sandbox", s.id, "error", err)
		return
	case busy:
		s.control.Touch()
		m.touch(ctx, s)
		return
	}
	// Busy is called without a lock, so the session may have been used since. The session is idle only if the last use is
	// unchanged.
	if !s.control.BeginClose(func(use sandbox.Use) bool { return use.Calls == 0 && use.Last.Equal(used) }) {
		return
	}
	to := s.on(owner.Idle)
	if s.wasLost() && s.survives() && s.outlives() {
		to = owner.Ready
	}
	if err := m.finishClose(ctx, s, to, owner.Idle); err != nil {
		m.log.WarnContext(ctx, "cannot remove an idle sandbox yet", "sandbox", s.id, "error", err)
	}
}

// idleFor reports whether the session's idle timeout has passed, and since when the session is idle.
func (s *Session) idleFor(now time.Time) (since time.Time, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	use := s.control.Use()
	return use.Last, !use.Closing && use.Calls == 0 && s.idle >= 0 && now.Sub(use.Last) >= s.idle
}

// touch records the session's last use in the store. If the store has the session's last use, touch does nothing. The
// store keeps a later use by another process.
func (m *Manager) touch(ctx context.Context, s *Session) {
	expires := s.expiry()
	used, use := s.lastUse(), s.control.Use()
	s.mu.Lock()
	known := !used.After(s.recorded)
	s.mu.Unlock()
	if known || use.Closing || use.Lost {
		return
	}
	err := m.store.Touch(ctx, s.id, used, expires)
	if err == nil {
		s.mu.Lock()
		s.recorded = used
		s.mu.Unlock()
	} else if !errors.Is(err, backend.ErrNotFound) && ctx.Err() == nil {
		m.log.WarnContext(ctx, "cannot record the use of a sandbox", "sandbox", s.id, "error", err)
	}
}

// prune deletes old closed scopes and records.
func (m *Manager) prune(ctx context.Context) {
	now := m.now()
	m.mu.Lock()
	maps.DeleteFunc(m.sealed, func(_ record.Scope, at time.Time) bool { return now.Sub(at) > custody.Lifetimes.Remembered })
	m.mu.Unlock()
	recs, err := m.store.List(ctx, record.Closed, "lost") // earlier versions wrote "lost"
	if err != nil && ctx.Err() == nil {
		m.log.WarnContext(ctx, "cannot list closed sandboxes", "error", err)
	}
	for _, rec := range recs {
		if rec.Expires.After(now) || m.own(rec.ID) != nil {
			continue
		}
		if err := m.store.Delete(ctx, rec.ID); err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "cannot delete the record of a closed sandbox", "sandbox", rec.ID, "error", err)
		}
	}
}
