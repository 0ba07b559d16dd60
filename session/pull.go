package session

import (
	"sync"

	"github.com/workcell-dev/workcell/backend"
)

// pullRelay hands the progress of one pull to all openers who wait for it. An opener who left is not called any more.
type pullRelay struct {
	mu    sync.Mutex // guards heard
	heard []*pullListener
}

// pullListener is one opener's function. Each has its own lock, so that one that blocks holds up nobody who leaves.
type pullListener struct {
	mu sync.Mutex // held while f is called, so that leave waits for it
	f  func(backend.PullProgress)
}

// join adds a listener, which may be nil, and returns the function that removes it.
func (p *pullRelay) join(listener func(backend.PullProgress)) (leave func()) {
	if listener == nil {
		return func() {}
	}
	l := &pullListener{f: listener}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, l)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.f = nil
	}
}

// report calls the listeners. One that panics is not called again; the pull goes on for the others.
func (p *pullRelay) report(progress backend.PullProgress) {
	p.mu.Lock()
	heard := p.heard
	p.mu.Unlock()
	for _, l := range heard {
		l.call(progress)
	}
}

func (l *pullListener) call(progress backend.PullProgress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil && guarded(func() error { l.f(progress); return nil }) != nil {
		l.f = nil
	}
}
