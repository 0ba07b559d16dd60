package server

import (
	"math"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/proc"
)

// never is longer than the lifetime of a guest agent.
const never time.Duration = math.MaxInt64

// lease counts connected hosts. It calls over if no host was connected for a given time. It starts without a host.
type lease struct {
	mu    sync.Mutex // guards hosts and after
	hosts int
	after time.Duration
	timer *time.Timer
}

func newLease(after time.Duration, over func()) *lease {
	return &lease{after: after, timer: time.AfterFunc(after, over)}
}

// count adds by hosts, or removes hosts if by is negative. It returns the number of connected hosts.
func (l *lease) count(by int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts += by
	l.wait(l.after)
	return l.hosts
}

// wait calls over after d, unless a host is connected or connects before. The caller must hold mu.
func (l *lease) wait(d time.Duration) {
	l.timer.Stop()
	if l.hosts == 0 {
		l.timer.Reset(d)
	}
}

// last sets the time to d and starts it again.
func (l *lease) last(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after = d
	l.wait(d)
}

// orphaned stops a sandbox to which no host was connected for OrphanTimeout, unless commands are running or ran within
// this time. Background processes count as commands, unless the sandbox is ephemeral and the owner is gone.
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
