package server

import (
	"math"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/proc"
)

// never is longer than a guest lives.
const never time.Duration = math.MaxInt64

// lease counts the hosts and calls over when there was none for long enough. It begins without a host.
type lease struct {
	mu    sync.Mutex // guards hosts and after
	hosts int
	after time.Duration
	timer *time.Timer
}

func newLease(after time.Duration, over func()) *lease {
	return &lease{after: after, timer: time.AfterFunc(after, over)}
}

// count adds hosts, or removes them if by is negative, and returns how many are connected.
func (l *lease) count(by int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts += by
	l.wait(l.after)
	return l.hosts
}

// wait calls over after d, unless a host comes or is connected. The caller holds mu.
func (l *lease) wait(d time.Duration) {
	l.timer.Stop()
	if l.hosts == 0 {
		l.timer.Reset(d)
	}
}

// last makes the lease last d from now on.
func (l *lease) last(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after = d
	l.wait(d)
}

// orphaned ends a sandbox that no host was connected to for OrphanTimeout, unless commands run or did so within that
// time. Background processes count as commands, unless the sandbox's only owner is gone.
func (s *Server) orphaned() {
	s.orphan.mu.Lock()
	timeout := s.orphan.after
	left := timeout - s.execs.idle()
	if left <= 0 && (s.orphan.hosts > 0 || !s.cfg.Ephemeral && s.spawner.Busy()) {
		left = timeout
	}
	if left > 0 {
		s.orphan.wait(left)
	}
	s.orphan.mu.Unlock()
	if left > 0 {
		return
	}
	s.logf("no host and nothing that runs for %v: ending", timeout)
	s.killAll(proc.DefaultGrace)
	if s.cfg.Orphaned != nil {
		s.cfg.Orphaned()
	}
}
