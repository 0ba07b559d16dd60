package client

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Timeouts of a closed connection.
const (
	endPatience = 30 * time.Second       // to deliver pending data and the end; afterwards the connection is reset
	endWait     = 100 * time.Millisecond // the part of endPatience during which Close waits
)

// Dialed is a connection to a port of the sandbox. It implements net.Conn, CloseWrite, and SetLinger.
type Dialed struct {
	*peerConn
	local, remote *net.TCPAddr
	reset         atomic.Bool // if set, Close resets the connection
}

// Dial connects to a TCP port on the sandbox's loopback interface. ctx only bounds the connecting.
func (c *Conn) Dial(ctx context.Context, req wire.DialRequest) (*Dialed, error) {
	k, err := c.open(ctx, wire.OpDial, &req)
	if err != nil {
		return nil, err
	}
	d := &Dialed{peerConn: &peerConn{call: k}}
	var res wire.Dialed
	if err := k.keep(&res, func() error { return d.addresses(&res) }); err != nil {
		return nil, err
	}
	return d, nil
}

// addresses validates and stores the addresses in the guest agent's response.
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

// LocalAddr returns the address of the guest agent's end, inside the sandbox.
func (d *Dialed) LocalAddr() net.Addr { return d.local }

// RemoteAddr returns the address of the server, inside the sandbox.
func (d *Dialed) RemoteAddr() net.Addr { return d.remote }

// SetLinger makes Close reset the connection if sec is 0, like SetLinger of net.TCPConn. Other values have no effect.
func (d *Dialed) SetLinger(sec int) error {
	d.reset.Store(sec == 0)
	return nil
}

// Close closes the connection and delivers pending data. If a Write is in progress, or if the server reads nothing for
// 30 seconds, Close resets the connection. Calling Close again has no effect.
func (d *Dialed) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	_ = d.st.SetReadDeadline(time.Unix(1, 0)) // cannot fail, as below; unblocks a Read
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
	case <-time.After(endWait): // pending data waits for the server
	}
	return nil
}
