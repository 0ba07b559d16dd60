package egress

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// client is the connection of code inside, of which some bytes may have been read.
type client struct {
	net.Conn
	r *bufio.Reader
}

func (c *client) Read(b []byte) (int, error) { return c.r.Read(b) }

// CloseWrite ends the direction to the code inside.
func (c *client) CloseWrite() error { return closeWrite(c.Conn) }

// tunnel serves a client that asked, by CONNECT, for a connection to a host. answer tells it whether it has one.
//
// On port 80, unless a rule names it, HTTP is spoken and each request is looked at. What a rule names the port of is
// passed as it is, but for TLS, which must name the host wherever it is spoken.
func (d *door) tunnel(ctx context.Context, c *client, to target, answer func(*refusal) error) {
	m, refused := d.match(to)
	if refused == nil && to.port == 80 && !m.Named && ctx.Value(fullKey{}) == nil {
		if answer(nil) == nil && !d.startsTLS(c) {
			d.serveHTTP(ctx, c, &to)
			return
		}
		answer = func(*refusal) error { return nil } // it was given
	}
	a := d.begin(ctx, to)
	host, refused := a.open(ctx)
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

// alertTime is how long a client may take to read that it is refused.
const alertTime = 5 * time.Second

// firstByte is how long a client may be silent where it has to speak first.
const firstByte = 30 * time.Second

// startsTLS reports whether the client begins with TLS.
func (d *door) startsTLS(c *client) bool {
	_ = c.SetReadDeadline(time.Now().Add(firstByte)) // a connection that is closed is noticed by Peek
	defer c.SetReadDeadline(time.Time{})             //nolint:errcheck // the same
	b, err := c.r.Peek(1)
	return err == nil && b[0] == recordHandshake
}

// through passes the bytes of a tunnel once the client's first ones may pass. The host may speak first.
func (d *door) through(c *client, a *attempt, host *metered, named bool) error {
	var wg sync.WaitGroup
	wg.Go(func() { copyTo(c, host, c, host) })
	defer wg.Wait()
	begin, refused := d.check(c, a.to, named)
	if refused != nil {
		a.note(refused)
		_ = c.SetWriteDeadline(time.Now().Add(alertTime)) // a connection that is closed is noticed by Write
		_, _ = c.Write(alertDenied)                       // what is no TLS makes nothing of it
		_ = host.Close()
		_ = c.Close()
		return refused
	}
	copyTo(host, io.MultiReader(bytes.NewReader(begin), c), c, host)
	return nil
}

// check reads what a client begins with, and returns it when it may pass.
func (d *door) check(c *client, to target, named bool) ([]byte, *refusal) {
	first, err := c.r.Peek(1)
	if err != nil {
		return nil, nil // it says nothing, which copying finds out as well
	}
	if first[0] != recordHandshake {
		if !named {
			return nil, withoutTLS(to)
		}
		return nil, nil
	}
	_ = c.SetReadDeadline(time.Now().Add(firstByte))
	defer c.SetReadDeadline(time.Time{}) //nolint:errcheck // a connection that is closed is noticed by Read
	name, read, err := serverName(c)
	return read, sniRule(to, name, err)
}

func withoutTLS(to target) *refusal {
	return refuse(kindTLS, "tls: required", "Use TLS on port 443.", "%s requires TLS", to)
}

// sniRule refuses a ClientHello that does not name the host that the client asked for. An address has no name.
func sniRule(to target, name string, err error) *refusal {
	_, literal := to.addr()
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	const hint = "Send the requested host as an unencrypted TLS server name, without a dot at its end."
	switch {
	case err != nil:
		return refuse(kindTLS, "tls: "+helloRule(err), hint, "%s is not allowed: %v", to, err)
	case literal && name == "", name == to.host:
		return nil
	case name == "":
		return refuse(kindTLS, "tls: no server name", hint, "%s is not allowed: no host in the ClientHello", to)
	}
	return refuse(kindTLS, "tls: server name", hint, "%s is not allowed: different host in the ClientHello", to)
}

func helloRule(err error) string {
	if err == errECH { //nolint:errorlint // as serverName returns it
		return "encrypted ClientHello"
	}
	return "no ClientHello"
}
