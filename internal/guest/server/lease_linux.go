package server

import (
	"sync"
	"time"
)

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
	if l.hosts--; l.hosts == 0 {
		l.timer.Reset(l.after)
	}
}

func (l *lease) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts++ // no later leave starts the timer again
	l.timer.Stop()
}
