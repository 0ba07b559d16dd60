package session

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/session/record"
)

// Internals that tests use.
var (
	ValidID = record.ValidSandboxID
)

// Hash returns the hash of a prepared request.
func (m *Manager) Hash(req Request) (string, error) {
	req, err := m.prepare(req)
	return req.shape().hash(), err
}

// ReviewPool checks the pooled sandboxes, as the pool does periodically.
func (m *Manager) ReviewPool(ctx context.Context) { m.pool.Review(ctx) }

// Reap runs one round of the reaper.
func (m *Manager) Reap(ctx context.Context) { m.reap(ctx) }

// SetClock replaces the manager's clock. Call it before opening a session.
func (m *Manager) SetClock(now func() time.Time) { m.now = now }

// Now returns the time of the manager's clock.
func (m *Manager) Now() time.Time { return m.now() }

// Used returns the number of sandboxes that count against MaxSandboxes.
func (m *Manager) Used() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// Waiting returns the number of callers that are waiting for the creation of key's sandbox.
func (m *Manager) Waiting(key Key) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[key]; e != nil && e.flight != nil {
		return e.flight.waiters
	}
	return 0
}

// Leftovers returns the number of closed sandboxes that still have to be removed.
func (m *Manager) Leftovers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.owed)
}

// Active returns the number of running calls.
func (s *Session) Active() int { return s.control.Use().Calls }

// Listening returns the number of callers that receive the pull progress of key's sandbox.
func (m *Manager) Listening(key Key) int {
	m.mu.Lock()
	e := m.entries[key]
	m.mu.Unlock()
	if e == nil || e.flight == nil {
		return 0
	}
	e.flight.pulls.mu.Lock()
	defer e.flight.pulls.mu.Unlock()
	return len(e.flight.pulls.heard)
}

// Die stops the manager like the death of its process: it closes, removes, and records nothing.
func (m *Manager) Die() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	for p := m.pool.evict(); p != nil; p = m.pool.evict() {
		p.session.control.Close()
	}
	m.cancel()
	m.wg.Wait()
	for _, s := range m.sessions(func(*Session) bool { return true }) {
		s.control.Close()
	}
	_ = m.leave() // no error with a memory store
	close(m.finished)
}
