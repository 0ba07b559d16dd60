package client

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Times of a connection that is closed.
const (
	endPatience = 30 * time.Second       // for the end to go out behind what was written, after which the connection is reset
	endWait     = 100 * time.Millisecond // of that, how much Close waits for
)

// Dialed is a connection to a port of the sandbox, a net.Conn with CloseWrite and SetLinger.
type Dialed struct {
	*peerConn
	local, remote *net.TCPAddr
	reset         atomic.Bool // Close resets the connection
}

// Dial connects to a TCP port of the sandbox's loopback. ctx bounds that alone.
func (c *Conn) Dial(ctx context.Context, req wire.DialRequest) (*Dialed, error) {
	k, err := c.open(ctx, wire.OpDial, &req)
	if err != nil {
		return nil, err
	}
	d := &Dialed{peerConn: &peerConn{call: k}}
	var res wire.Dialed
	if err = k.answer(&res); err == nil {
		err = d.addresses(&res)
	}
	if err == nil && !k.stop() { // from now on ctx is not the connection's
		err = ctx.Err()
	}
	if err != nil {
		k.end()
		return nil, err
	}
	return d, nil
}

// addresses checks and takes what the guest says that it connected.
func (d *Dialed) addresses(res *wire.Dialed) error {
	for text, addr := range map[string]**net.TCPAddr{res.Local: &d.local, res.Remote: &d.remote} {
		ap, err := netip.ParseAddrPort(text)
		if err != nil || !ap.Addr().Unmap().IsLoopback() || ap.Addr().Zone() != "" {
			return protocolErrorf("addresses of a connection")
		}
		*addr = net.TCPAddrFromAddrPort(ap)
	}
	return nil
}

// LocalAddr returns the address of the guest's end, inside the sandbox.
func (d *Dialed) LocalAddr() net.Addr { return d.local }

// RemoteAddr returns the address that was connected to, inside the sandbox.
func (d *Dialed) RemoteAddr() net.Addr { return d.remote }

// SetLinger has Close reset the connection when sec is 0, as that of a net.TCPConn does. Other values are the default.
func (d *Dialed) SetLinger(sec int) error {
	d.reset.Store(sec == 0)
	return nil
}

// Close ends the connection. What was written is delivered, unless a Write is still under way: then the connection is
// reset, as it is when its server takes nothing for half a minute. Idempotent.
func (d *Dialed) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	_ = d.st.SetReadDeadline(time.Unix(1, 0)) // cannot fail, as below; frees a Read
	if d.reset.Load() || !d.writing.TryLock() {
		d.abort()
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer d.writing.Unlock()
		if d.writeErr == nil {
			_ = d.st.SetWriteDeadline(time.Now().Add(endPatience))
			_, _ = d.st.Write(wire.AppendEOF(nil, wire.ChanConn)) // if it fails, the connection is reset
			d.writeErr = net.ErrClosed
		}
		d.abort()
	}()
	select {
	case <-done:
	case <-time.After(endWait): // what was written waits for its reader
	}
	return nil
}
