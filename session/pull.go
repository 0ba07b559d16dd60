package session

import (
	"sync"

	"github.com/workcell-dev/workcell/backend"
)

// pullRelay hands the progress of one pull to all openers who wait for it. An opener who left is not called any more.
type pullRelay struct {
	mu    sync.Mutex // guards heard, and is held while its functions are called, so that who leaves waits for them
	heard []*func(backend.PullProgress)
}

// join adds a listener, which may be nil, and returns the function that removes it.
func (p *pullRelay) join(listener func(backend.PullProgress)) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, &listener)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		listener = nil
	}
}

// report calls the listeners. One that panics is not called again; the pull goes on for the others.
func (p *pullRelay) report(progress backend.PullProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.heard {
		if *l != nil && guarded(func() error { (*l)(progress); return nil }) != nil {
			*l = nil
		}
	}
}
