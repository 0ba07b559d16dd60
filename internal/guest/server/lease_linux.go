package server

import (
	"math"
	"sync"
	"time"
)

// never is longer than a guest lives.
const never time.Duration = math.MaxInt64

// lease counts the hosts and calls over when there was none for long enough. It begins without a host.
type lease struct {
	mu    sync.Mutex // guards hosts and timer
	hosts int
	after time.Duration
	timer *time.Timer
}

func newLease(after time.Duration, over func()) *lease {
	return &lease{after: after, timer: time.AfterFunc(after, over)}
}

func (l *lease) arrive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts++
	l.timer.Stop()
}

func (l *lease) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts--
	l.extend(l.after)
}

// extend calls over after d without a host. The caller holds mu.
func (l *lease) extend(d time.Duration) {
	if l.hosts == 0 {
		l.timer.Reset(d)
	}
}

// last makes the lease last d from now on.
func (l *lease) last(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after = d
	l.extend(d)
}

// length returns how long the lease lasts without a host.
func (l *lease) length() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.after
}

// stop ends the lease: no later leave starts the timer again.
func (l *lease) stop() { l.arrive() }

// orphaned ends a sandbox that no host was connected to for OrphanTimeout, unless commands run or did so within that time.
// Background processes count as commands, unless the sandbox's only owner is gone.
func (s *Server) orphaned() {
	timeout := s.orphan.length()
	left := timeout - s.execs.idle()
	if left <= 0 && !s.cfg.Ephemeral && s.spawner.Busy() {
		left = timeout
	}
	if left > 0 {
		s.orphan.mu.Lock()
		defer s.orphan.mu.Unlock()
		s.orphan.extend(left)
		return
	}
	s.logf("no host and nothing that runs for %v: ending", timeout)
	s.killAll(true)
	if s.cfg.Orphaned != nil {
		s.cfg.Orphaned()
	}
}
