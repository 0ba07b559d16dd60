package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// client is a connection of code in a sandbox. Some bytes may already be in r.
type client struct {
	net.Conn
	r *bufio.Reader
}

func (c *client) Read(b []byte) (int, error) { return c.r.Read(b) }

// CloseWrite closes the direction to the code in the sandbox.
func (c *client) CloseWrite() error { return closeWrite(c.Conn) }

// tunnel serves a client after a CONNECT request. answer sends the result to the client.
//
// On port 80, tunnel checks each HTTP request, unless a rule lists the port. If a rule lists the port, data passes
// unchanged. In any case, TLS must use the requested host as the server name.
func (d *door) tunnel(ctx context.Context, c *client, to target, answer func(*refusal) error) {
	m, refused := d.match(ctx, to)
	if refused == nil && to.port == 80 && !m.Named {
		if answer(nil) == nil && !d.startsTLS(c) {
			d.serveHTTP(ctx, c, &to)
			return
		}
		answer = func(*refusal) error { return nil } // the answer was already sent
	}
	a := d.begin(ctx, to)
	var host *metered
	if refused == nil {
		host, refused = a.open(ctx, m)
	}
	if refused != nil {
		a.note(refused)
		_ = answer(refused) // the client may have closed the connection
		a.end(nil, refused)
		return
	}
	defer host.Close() //nolint:errcheck // it has ended
	err := answer(nil)
	if err == nil {
		err = d.through(c, a, host, m.Named)
	}
	if err == nil && host.spent.Load() {
		err = a.spent()
	}
	a.end(host, err)
}

// alertTime is the maximum time for the client to read the alert.
const alertTime = 5 * time.Second

// firstByte is the maximum time for a client to send the first byte, if the client must send first.
const firstByte = 30 * time.Second

// startsTLS reports whether the client starts with TLS.
func (d *door) startsTLS(c *client) bool {
	_ = c.SetReadDeadline(time.Now().Add(firstByte)) // Peek detects a closed connection
	defer c.SetReadDeadline(time.Time{})             //nolint:errcheck // the same
	b, err := c.r.Peek(1)
	return err == nil && b[0] == recordHandshake
}

// through copies the data of a tunnel after the client's first bytes were accepted. The host may send first.
func (d *door) through(c *client, a *attempt, host *metered, named bool) error {
	var wg sync.WaitGroup
	wg.Go(func() { copyTo(c, host, c, host) })
	defer wg.Wait()
	begin, refused := d.check(c, a.to, named)
	if refused != nil {
		a.note(refused)
		_ = c.SetWriteDeadline(time.Now().Add(alertTime)) // Write detects a closed connection
		_, _ = c.Write(alertDenied)                       // other protocols ignore it
		_ = host.Close()
		_ = c.Close()
		return refused
	}
	copyTo(host, io.MultiReader(bytes.NewReader(begin), c), c, host)
	return nil
}

// check reads the first bytes from the client and returns them if they may pass.
func (d *door) check(c *client, to target, named bool) ([]byte, *refusal) {
	first, err := c.r.Peek(1)
	if err != nil {
		return nil, nil // the client sent nothing; copying detects this too
	}
	if first[0] != recordHandshake {
		if !named {
			return nil, withoutTLS(to)
		}
		return nil, nil
	}
	_ = c.SetReadDeadline(time.Now().Add(firstByte))
	defer c.SetReadDeadline(time.Time{}) //nolint:errcheck // Read detects a closed connection
	name, read, err := serverName(c)
	return read, sniRule(to, name, err)
}

func withoutTLS(to target) *refusal {
	return refuse(kindTLS, "tls: required", "Use TLS on port 443.", "%s requires TLS", to)
}

// sniRule refuses a ClientHello whose server name is not the requested host. If the host is an address, there must be
// no name.
func sniRule(to target, name string, err error) *refusal {
	_, literal := to.addr()
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	const hint = "Send the requested host as an unencrypted TLS server name, without a dot at its end."
	switch {
	case errors.Is(err, errECH):
		return refuse(kindTLS, "tls: encrypted ClientHello", hint, "%s is not allowed: %v", to, err)
	case err != nil:
		return refuse(kindTLS, "tls: no ClientHello", hint, "%s is not allowed: %v", to, err)
	case literal && name == "", name == to.host:
		return nil
	case name == "":
		return refuse(kindTLS, "tls: no server name", hint, "%s is not allowed: no host in the ClientHello", to)
	}
	return refuse(kindTLS, "tls: server name", hint, "%s is not allowed: different host in the ClientHello", to)
}
