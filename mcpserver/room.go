package mcpserver

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/workcell-dev/workcell/session"
)

// Default sizes of one result. Clients truncate longer results, so their models would miss the rest.
const (
	readBytes   = 10_000
	streamChars = 10_000
)

// spareAfter is the minimum idle time after which a new sandbox may replace a sandbox of requests without a session.
const spareAfter = time.Minute

// spareSandbox is an idle sandbox of a request without a session.
type spareSandbox struct {
	*session.Session
	owned int // number of sandboxes of the owner
	used  time.Time
}

// makeRoom closes one idle sandbox. It returns false if no sandbox is idle.
func (s *Server) makeRoom(ctx context.Context) bool {
	s.room.Lock()
	defer s.room.Unlock()
	for _, idle := range s.spare(time.Now()) {
		if stats, err := idle.Stats(ctx); err == nil && stats.Running > 0 || s.opts.Shared && idle.UsedElsewhere(ctx) {
			continue
		}
		if err := s.manager.CloseSession(ctx, idle.Key(), session.CloseOptions{}); err != nil {
			s.log.WarnContext(ctx, "cannot close an idle sandbox to make room for a new one", "sandbox", idle.ID(), "error", err)
			continue
		}
		s.log.InfoContext(ctx, "closed an idle sandbox to make room for a new one", "sandbox", idle.ID())
		return true
	}
	return false
}

// spare returns the idle sandboxes of requests without a session, because their clients may have left without notice.
// Sandboxes of the owner with the most sandboxes come first, to prevent an owner from displacing others. Per owner, the
// oldest sandbox comes first.
func (s *Server) spare(now time.Time) (list []spareSandbox) {
	s.mu.Lock()
	scopes := slices.Collect(maps.Values(s.owners))
	s.mu.Unlock()
	for _, sc := range scopes {
		own := s.manager.InScope(sc.run.Scope())
		for _, one := range own {
			if used := one.Info().LastUsed; now.Sub(used) >= s.spareAfter {
				list = append(list, spareSandbox{one, len(own), used})
			}
		}
	}
	slices.SortFunc(list, func(a, b spareSandbox) int {
		return cmp.Or(cmp.Compare(b.owned, a.owned), a.used.Compare(b.used))
	})
	return list
}
