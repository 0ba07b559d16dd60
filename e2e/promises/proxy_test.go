//go:build linux

package promises

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// proxy is a proxy in front of the real engine. A test can act at a selected moment of a call, or cut the engine off.
// It does not change the data. Received requests are executed on the engine, even if the caller hangs up.
type proxy struct {
	address string                              // address of the socket
	hook    atomic.Pointer[func(*http.Request)] // called with every request before it is forwarded

	mu    sync.Mutex // guards the fields below
	cut   bool
	conns []net.Conn
}

// on sets the function that is called with every request, in goroutines of the proxy.
func (p *proxy) on(f func(*http.Request)) { p.hook.Store(&f) }

func (p *proxy) met(r *http.Request) {
	if f := p.hook.Load(); f != nil {
		(*f)(r)
	}
}

// setCut closes all connections and rejects new connections, or accepts them again.
func (p *proxy) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut = cut; cut {
		for _, c := range p.conns {
			_ = c.Close() // it may already be closed
		}
		p.conns = nil
	}
}

// admit registers the two ends of a connection. It returns false if the engine is cut off.
func (p *proxy) admit(ends ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		p.conns = append(p.conns, ends...)
	}
	return !p.cut
}

// newProxy starts a proxy in front of the engine to which dial connects. forward copies the client's data, and closes
// the engine's end if the engine may learn that the client is gone.
func newProxy(t testing.TB, l net.Listener, dial func() (net.Conn, error), forward func(p *proxy, server net.Conn, client io.Reader) error) *proxy {
	t.Helper()
	p := &proxy{address: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := dial()
			if err != nil || !p.admit(client, server) {
				_ = client.Close() // like a missing listener
				if err == nil {
					_ = server.Close() // nothing was sent
				}
				continue
			}
			wg.Go(func() {
				_, _ = io.Copy(client, server) // ends when either end closes
				_ = client.Close()
			})
			wg.Go(func() { _ = forward(p, server, client) }) // ends when either end closes
		}
	})
	t.Cleanup(func() {
		p.setCut(true)
		_ = l.Close()
		wg.Wait()
	})
	return p
}

// dialer returns a function that connects to an address.
func dialer(network, address string) func() (net.Conn, error) {
	return func() (net.Conn, error) { return net.Dial(network, address) }
}

// forwardHTTP copies requests one by one.
func forwardHTTP(p *proxy, server net.Conn, client io.Reader) error {
	for from := bufio.NewReader(client); ; {
		r, err := http.ReadRequest(from)
		if err != nil {
			return err
		}
		p.met(r)
		if err := r.Write(server); err != nil {
			return err
		}
		if r.Header.Get("Upgrade") != "" {
			defer server.Close()
			_, err := io.Copy(server, from)
			return err
		}
	}
}

// forwardGRPC copies frames and reads the method names in them.
func forwardGRPC(p *proxy, server net.Conn, client io.Reader) error {
	defer server.Close()
	if _, err := io.CopyN(server, client, int64(len(http2.ClientPreface))); err != nil {
		return err
	}
	path := ""
	headers := hpack.NewDecoder(64<<10, func(f hpack.HeaderField) {
		if f.Name == ":path" {
			path = f.Value
		}
	})
	for {
		frame := make([]byte, 9)
		if _, err := io.ReadFull(client, frame); err != nil {
			return err
		}
		frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame)>>8)...)
		if _, err := io.ReadFull(client, frame[9:]); err != nil {
			return err
		}
		if http2.FrameType(frame[3]) == http2.FrameHeaders {
			path = ""
			if err := readHeaders(headers, http2.Flags(frame[4]), frame[9:]); err != nil {
				return err
			}
			p.met(&http.Request{Method: http.MethodPost, URL: &url.URL{Path: path}})
		}
		if _, err := server.Write(frame); err != nil {
			return err
		}
	}
}

// readHeaders decodes a headers frame. gRPC's headers fit in one frame.
func readHeaders(d *hpack.Decoder, flags http2.Flags, block []byte) error {
	if !flags.Has(http2.FlagHeadersEndHeaders) {
		return errors.New("headers of more than one frame")
	}
	padding := 0
	if flags.Has(http2.FlagHeadersPadded) {
		padding, block = int(block[0]), block[1:]
	}
	if flags.Has(http2.FlagHeadersPriority) {
		block = block[5:]
	}
	if _, err := d.Write(block[:len(block)-padding]); err != nil {
		return err
	}
	return d.Close()
}
