package server

import (
	"cmp"
	"math"
	"time"
)

// never is longer than a guest lives.
const never time.Duration = math.MaxInt64

// newOrphanLease returns a lease of Config.OrphanTimeout.
func (s *Server) newOrphanLease() *lease {
	return newLease(cmp.Or(max(0, s.cfg.OrphanTimeout), never), s.orphaned)
}

// orphaned ends a sandbox that no host was connected to for OrphanTimeout, unless commands run or did so within that time.
func (s *Server) orphaned() {
	if left := s.cfg.OrphanTimeout - s.execs.idle(); left > 0 {
		s.orphan.extend(left)
		return
	}
	s.logf("no host and no command for %v: ending", s.cfg.OrphanTimeout)
	s.killAll(true)
	if s.cfg.Orphaned != nil {
		s.cfg.Orphaned()
	}
}

// idle returns how long no exec has been running; zero while one is.
func (r *registry) idle() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running > 0 {
		return 0
	}
	return time.Since(r.lastEnd)
}

// extend calls over after another d without a host.
func (l *lease) extend(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts == 0 {
		l.timer.Reset(d)
	}
}
