package egress_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/sandbox"
)

// FuzzServerName verifies for any input that serverName returns exactly the bytes it read, and it returns a name only
// for a complete ClientHello.
func FuzzServerName(f *testing.F) {
	f.Add(hello(f, named("good.example")))
	f.Add(hello(f, named("")))
	f.Add(encrypted(f))
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, read, err := egress.ServerName(bytes.NewReader(b))
		if !bytes.HasPrefix(b, read) {
			t.Errorf("read %x", read)
		}
		if name != "" && !bytes.Contains(read, []byte(name)) && len(read) < 1<<14 && bytes.Count(read, []byte{0x16, 3}) < 2 {
			t.Errorf("the name %q is not in %x", name, read)
		}
		if err != nil && !errors.Is(err, egress.ErrECH) && name != "" {
			t.Errorf("a name %q with %v", name, err)
		}
		again, _, err2 := egress.ServerName(bytes.NewReader(read))
		if again != name || (err == nil) != (err2 == nil) {
			t.Errorf("%q, %v, the second time %q, %v", name, err, again, err2)
		}
	})
}

// FuzzConnection verifies for any input that the gateway connects only to allowed hosts.
func FuzzConnection(f *testing.F) {
	for _, seed := range []string{
		"GET http://good.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"CONNECT good.example:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"CONNECT 10.0.0.1:443 HTTP/1.0\r\n\r\n", "POST http://good.example:80@evil.example/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := egress.New(&egress.Options{Resolver: names()})
		must(t, err)
		g.SetDial(func(_ context.Context, _, address string) (net.Conn, error) {
			if address != "1.1.1.1:80" && address != "1.1.1.1:443" {
				t.Errorf("%q connects to %s", b, address)
			}
			return nil, errors.New("nobody answers")
		})
		_, _, err = g.Open(id, sandbox.Egress{Allow: []string{"good.example", "mixed.example", "10.0.0.1"}})
		must(t, err)
		near, far := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { g.Serve(context.Background(), id, far); _ = far.Close() })
		wg.Go(func() { _, _ = io.Copy(io.Discard, near) })
		_, _ = near.Write(b) // the gateway may refuse it before the end
		_ = near.Close()
		wg.Wait()
	})
}
