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

// weather is the treatment of data by a proxy.
type weather string

const (
	fair       weather = "fair"
	slow       weather = "delayed"      // all data is delayed
	reset      weather = "reset"        // existing connections break once; new connections work
	cut        weather = "cut off"      // existing connections break, and new connections are refused
	hole       weather = "into a hole"  // connections work, but no data passes
	unanswered weather = "answers lost" // requests pass, but answers are lost
)

// latency is the delay of delayed data.
const latency = 30 * time.Millisecond

// proxy is a socket in front of an engine's socket. It does not interpret the data.
type proxy struct {
	mu      sync.Mutex // guards the fields below
	weather weather
	changed chan struct{} // closed when the weather changes
	pairs   map[*pair]struct{}
}

// pair is a client's connection and the corresponding connection to the engine.
type pair struct{ client, server net.Conn }

func (c *pair) close() { _, _ = c.client.Close(), c.server.Close() } // may be closed already

// newProxy starts a proxy in front of an engine, until the end of the test.
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
				_ = client.Close() // like a missing listener
			}
		}
	})
	t.Cleanup(func() {
		p.set(cut)
		err := l.Close() // ends the loop
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

// pass forwards both directions of a connection until they end.
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

// carry forwards one direction of a connection as the weather allows.
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

// wait waits until the weather lets data pass.
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
			time.Sleep(latency) // the delay is the fault
		}
		return
	}
}
