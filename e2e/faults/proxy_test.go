//go:build linux

package faults

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// weather is how a proxy treats what passes through it.
type weather string

const (
	fair       weather = "fair"
	slow       weather = "delayed"      // everything takes a while longer
	reset      weather = "reset"        // connections break once, new ones are as good as ever
	cut        weather = "cut off"      // connections break, and there are no new ones
	hole       weather = "into a hole"  // connections are there, nothing comes through
	unanswered weather = "answers lost" // what is asked gets through, no answer does
)

// latency is how much later things arrive when they are delayed.
const latency = 30 * time.Millisecond

// proxy is a socket before an engine's. It knows nothing of what passes.
type proxy struct {
	mu      sync.Mutex // guards what follows
	weather weather
	changed chan struct{} // closed when the weather changes
	pairs   map[*pair]struct{}
}

// pair is a connection of a client and the one to the engine.
type pair struct{ client, server net.Conn }

func (c *pair) close() { _, _ = c.client.Close(), c.server.Close() } // they may be closed

// newProxy starts a proxy before an engine, until the end of the test.
func newProxy(t *testing.T, l net.Listener, network, address string) *proxy {
	t.Helper()
	p := &proxy{weather: fair, changed: make(chan struct{}), pairs: map[*pair]struct{}{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed
			}
			if server, err := net.Dial(network, address); err == nil {
				wg.Go(func() { p.pass(&pair{client, server}) })
			} else {
				_ = client.Close() // as if nobody listened
			}
		}
	})
	t.Cleanup(func() {
		p.set(cut)
		err := l.Close() // which ends the loop
		wg.Wait()
		must(t, err)
	})
	return p
}

// set changes the weather.
func (p *proxy) set(to weather) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if to == cut || to == reset {
		for c := range p.pairs {
			c.close()
		}
	}
	p.weather = to
	close(p.changed)
	p.changed = make(chan struct{})
}

// pass carries both directions of a connection to their ends.
func (p *proxy) pass(c *pair) {
	defer c.close()
	p.mu.Lock()
	if p.weather == cut {
		p.mu.Unlock()
		return
	}
	p.pairs[c] = struct{}{}
	p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { p.carry(c, c.server, c.client, false) })
	wg.Go(func() { p.carry(c, c.client, c.server, true) })
	wg.Wait()
	p.mu.Lock()
	delete(p.pairs, c)
	p.mu.Unlock()
}

// carry copies one direction of a connection as the weather allows.
func (p *proxy) carry(c *pair, to, from net.Conn, answers bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.wait(answers)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		half, ok := to.(interface{ CloseWrite() error })
		switch {
		case errors.Is(err, io.EOF) && ok && half.CloseWrite() == nil:
			return // the other direction stays open
		case err != nil:
			c.close()
			return
		}
	}
}

// wait waits until the weather lets something through.
func (p *proxy) wait(answers bool) {
	for {
		p.mu.Lock()
		now, changed := p.weather, p.changed
		p.mu.Unlock()
		switch {
		case now == hole || now == unanswered && answers:
			<-changed
			continue
		case now == slow:
			time.Sleep(latency) // that is the fault
		}
		return
	}
}
