package session

import (
	"context"
	"time"
)

// Stats is what a sandbox uses now, as far as it is known.
type Stats struct {
	Uptime      time.Duration // of its main process
	Running     int           // commands under way
	MemoryBytes int64         // with the pages of files in memory; zero is unknown
	PIDs        int64         // processes and threads; zero is unknown
}

// Stats asks what the sandbox uses. The question does not count as use: an idle session stays idle. The answer is the
// guest's, a stranger's word.
func (s *Session) Stats(ctx context.Context) (Stats, error) {
	if s.isClosing() {
		return Stats{}, wrapError("Stats", s.m.driver, s.id, errSessionClosed)
	}
	conn, err := s.connection(ctx)
	if err != nil {
		return Stats{}, wrapError("Stats", s.m.driver, s.id, s.explain(ctx, err))
	}
	h, err := conn.Health(ctx)
	if err != nil {
		return Stats{}, wrapError("Stats", s.m.driver, s.id, s.explain(ctx, err))
	}
	return Stats{
		Uptime: max(0, time.Duration(h.UptimeMillis)*time.Millisecond), Running: max(0, h.Running),
		MemoryBytes: max(0, h.MemoryUsed), PIDs: max(0, h.PIDsUsed),
	}, nil
}
