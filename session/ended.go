package session

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// A manager that was killed, or whose machine lost its power, cleans nothing up. So every guest ends itself when it was
// alone for long enough, and what has ended is removed by the sweep of the instance, or of anybody where the instance was
// this manager's alone.

// orphanTimeout returns how long the guest of a session's sandbox goes on alone; zero is for ever.
func (s *Session) orphanTimeout() time.Duration {
	if s.idle < 0 {
		return 0
	}
	return max(s.idle, s.req.Retention, lifetimes.Interrupted, secondaryIdle(Record{Idle: s.idle})) + lifetimes.OrphanMargin
}

// removeEnded removes the ended sandboxes of managers whose instance nobody else has.
func (m *Manager) removeEnded(ctx context.Context) error {
	found, err := m.b.List(ctx, backend.Filter{})
	if err != nil {
		return engineError(err)
	}
	for _, engine := range found {
		if !engine.Ephemeral || engine.State != backend.StateStopped || engine.Instance == m.opts.Instance ||
			m.now().Sub(engine.Created) < lifetimes.Ended {
			continue
		}
		m.log.InfoContext(ctx, "removing a sandbox that ended after its process", "sandbox", engine.SessionID)
		if err := m.removeEngine(ctx, engine.ID, true); err != nil {
			m.log.WarnContext(ctx, "cannot remove a sandbox that ended after its process", "sandbox", engine.SessionID, "error", err)
		}
	}
	return nil
}
