package session

import (
	"context"
	"errors"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// reapTogether is how many sessions are looked at side by side.
const reapTogether = 8

// reapLoop looks for idle sessions until the manager ends.
func (m *Manager) reapLoop() {
	ticker := time.NewTicker(m.opts.ReapEvery)
	defer ticker.Stop()
	m.sweep(m.ctx)
	for {
		select {
		case <-ticker.C:
			m.reap(m.ctx)
		case <-m.ctx.Done():
			return
		}
	}
}

// reap closes what is idle, sweeps, and forgets what need not be remembered any longer.
func (m *Manager) reap(ctx context.Context) {
	bound.Each(reapTogether, m.sessions(func(s *Session) bool { return s.owned }), func(s *Session) error {
		m.reapSession(ctx, s)
		return nil
	})
	for _, s := range m.sessions(func(s *Session) bool { return s.keepFresh }) {
		m.touch(ctx, s)
	}
	for _, s := range m.sessions(func(s *Session) bool { return s.joined }) {
		_, idle := s.idleFor(m.now())
		if over := idle || s.wasLost(); over && s.control.BeginClose(uncalled) {
			_ = m.finishClose(ctx, s, owner.Ready, owner.Idle) // ends the connection alone, which nobody used for the sandbox's idle time
			continue
		}
		s.recordUse(ctx)
	}
	m.keeper.SaveAgain()
	m.sweep(ctx)
	m.prune(ctx)
}

// reapSession closes s if it is idle. A sandbox in which a process runs is not idle. If the guest does not answer,
// the next round tries again.
func (m *Manager) reapSession(ctx context.Context, s *Session) {
	elsewhere := m.usedElsewhere(ctx, s)
	used, idle := s.idleFor(m.now())
	if elsewhere || !idle {
		m.touch(ctx, s)
		return
	}
	busy, err := s.control.Busy(ctx)
	switch {
	case errors.Is(err, backend.ErrLost): // nobody came for it since: remove what is left
	case err != nil:
		m.log.WarnContext(ctx, "cannot check whether a sandbox is idle", "sandbox", s.id, "error", err)
		return
	case busy:
		s.control.Touch()
		m.touch(ctx, s)
		return
	}
	// The guest was asked without a lock: only a session that nobody used meanwhile is idle.
	if !s.control.BeginClose(func(use sandbox.Use) bool {
		s.expired = use.Calls == 0 && use.Last.Equal(used)
		return s.expired
	}) {
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

// idleFor reports whether the session was idle for its idle timeout, and since when.
func (s *Session) idleFor(now time.Time) (since time.Time, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	use := s.control.Use()
	return use.Last, !use.Closing && use.Calls == 0 && s.idle >= 0 && now.Sub(use.Last) >= s.idle
}

// touch notes in the store when a session was last used.
func (m *Manager) touch(ctx context.Context, s *Session) {
	expires := s.expiry()
	used, use := s.lastUse(), s.control.Use()
	if use.Closing || use.Lost {
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

// prune forgets closed scopes and records after a while.
func (m *Manager) prune(ctx context.Context) {
	now := m.now()
	m.mu.Lock()
	for scope, at := range m.sealed {
		if now.Sub(at) > custody.Lifetimes.Remembered {
			delete(m.sealed, scope)
		}
	}
	m.mu.Unlock()
	recs, err := m.store.List(ctx, record.Closed, "lost") // which earlier versions wrote
	if err != nil {
		if ctx.Err() == nil {
			m.log.WarnContext(ctx, "cannot list closed sandboxes", "error", err)
		}
		return
	}
	for _, rec := range recs {
		if rec.Expires.After(now) || has(m, m.byID, rec.ID) {
			continue
		}
		if err := m.store.Delete(ctx, rec.ID); err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "cannot delete the record of a closed sandbox", "sandbox", rec.ID, "error", err)
		}
	}
}
