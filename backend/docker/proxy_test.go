package docker_test

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

	dockerclient "github.com/docker/docker/client"
)

// engineProxy is a proxy between a backend and the real engine, so that a test can act at a chosen moment of a call. If
// the caller disconnects, the engine still completes received requests, like a real engine.
type engineProxy struct {
	host string                                   // for Options.Host
	hook atomic.Pointer[func(*http.Request) bool] // called for every request; if it returns false, the request is held

	path    string
	handler http.Handler
	stop    func() // closes the listener and every connection
}

// on sets the proxy's function for every request, in the goroutine of the request. If the function returns false, the
// request is held until the caller disconnects, like a request to a hanging engine.
func (p *engineProxy) on(f func(*http.Request) bool) { p.hook.Store(&f) }

func newProxy(t testing.TB) *engineProxy {
	t.Helper()
	engine, err := dockerclient.ParseHostURL(engineAPI(t).DaemonHost())
	must(t, err)
	return newProxyTo(t, engine.Host)
}

// newProxyTo returns a proxy for the engine at a Unix socket.
func newProxyTo(t testing.TB, socket string) *engineProxy {
	t.Helper()
	p := &engineProxy{path: filepath.Join(t.TempDir(), "e.sock")}
	p.host = "unix://" + p.path
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "engine"}) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	p.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := p.hook.Load(); f != nil && !(*f)(r) {
			_, _ = io.Copy(io.Discard, r.Body) // the server notices a closed connection only after the body
			<-r.Context().Done()
			return
		}
		if r.Header.Get("Upgrade") == "" {
			r = r.WithContext(context.WithoutCancel(r.Context()))
		}
		forward.ServeHTTP(w, r)
	})
	p.start(t)
	t.Cleanup(func() {
		p.stop()
		transport.CloseIdleConnections()
	})
	return p
}

// start starts listening. It can be called again after stop.
func (p *engineProxy) start(t testing.TB) {
	t.Helper()
	l, err := net.Listen("unix", p.path)
	must(t, err)
	var mu sync.Mutex
	conns := map[net.Conn]bool{} // the server does not track hijacked connections
	srv := &http.Server{
		Handler: p.handler, ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(c net.Conn, s http.ConnState) {
			mu.Lock()
			defer mu.Unlock()
			if conns[c] = true; s == http.StateClosed {
				delete(conns, c)
			}
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l) // ends with Close
	}()
	p.stop = func() {
		_ = srv.Close()
		<-done
		mu.Lock()
		defer mu.Unlock()
		for c := range conns {
			_ = c.Close()
		}
	}
}
