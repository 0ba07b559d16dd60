package promises

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands before the real engine, so that a test can act at a chosen moment of a call, or cut the engine off. What
// reached it is done on the engine even when the caller hangs up, as by an engine.
type proxy struct {
	address string                              // of its socket
	hook    atomic.Pointer[func(*http.Request)] // called with every request before it goes on

	mu    sync.Mutex // guards what follows
	cut   bool
	conns map[net.Conn]struct{}
}

// on sets what is called with every request, on goroutines of the proxy.
func (p *proxy) on(f func(*http.Request)) { p.hook.Store(&f) }

// setCut breaks all connections and takes no more, or takes them again.
func (p *proxy) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut = cut; cut {
		for c := range p.conns {
			_ = c.Close() // that is the point
		}
	}
}

// newHTTPProxy puts a proxy before an engine that speaks plain HTTP.
func newHTTPProxy(t testing.TB, network, address string) *proxy {
	t.Helper()
	path := filepath.Join(t.TempDir(), "e.sock")
	l, err := net.Listen("unix", path)
	must(t, err)
	p := &proxy{address: path, conns: map[net.Conn]struct{}{}}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "engine"}) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if f := p.hook.Load(); f != nil {
			(*f)(r)
		}
		if r.Header.Get("Upgrade") == "" {
			r = r.WithContext(context.WithoutCancel(r.Context()))
		}
		forward.ServeHTTP(rw, r)
	}), ErrorLog: log.New(io.Discard, "", 0)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(&cuttable{Listener: l, p: p}) // ends with Close
	}()
	t.Cleanup(func() {
		p.setCut(true)
		_ = srv.Close()
		<-served
		transport.CloseIdleConnections()
	})
	return p
}

// cuttable notes the connections it gives out.
type cuttable struct {
	net.Listener
	p *proxy
}

func (l *cuttable) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.p.mu.Lock()
		cut := l.p.cut
		if !cut {
			l.p.conns[c] = struct{}{}
		}
		l.p.mu.Unlock()
		if !cut {
			return &noted{Conn: c, p: l.p}, nil
		}
		_ = c.Close() // as if nobody listened
	}
}

type noted struct {
	net.Conn
	p *proxy
}

func (c *noted) Close() error {
	c.p.mu.Lock()
	delete(c.p.conns, c.Conn)
	c.p.mu.Unlock()
	return c.Conn.Close()
}
