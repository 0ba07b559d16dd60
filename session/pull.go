package session

import (
	"sync"

	"github.com/workcell-dev/workcell/backend"
)

// pullRelay hands the progress of one pull to all openers who wait for it. An opener who left is not called any more.
type pullRelay struct {
	mu    sync.Mutex // guards the fields below; held while listeners are called, so that leave waits for them
	next  int
	heard map[int]func(backend.PullProgress)
}

// join adds a listener, which may be nil, and gives the function that takes it away.
func (p *pullRelay) join(listener func(backend.PullProgress)) (leave func()) {
	if listener == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.heard == nil {
		p.heard = map[int]func(backend.PullProgress){}
	}
	id := p.next
	p.next++
	p.heard[id] = listener
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.heard, id)
	}
}

// report calls the listeners.
func (p *pullRelay) report(progress backend.PullProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, listener := range p.heard {
		listener(progress)
	}
}
