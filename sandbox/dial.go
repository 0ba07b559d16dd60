package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// DialContext connects to a TCP port that a process of the sandbox listens on, whatever network the sandbox has: the
// bytes go the way of its commands. It has the form of net.Dialer's, for http.Transport and its like. network is "tcp",
// address "127.0.0.1:8080" or any other of the sandbox's loopback; nothing else is reached, backend.ErrPermission. A
// port that nothing listens on is backend.ErrNotFound, more than 128 connections to a sandbox at once are
// backend.ErrCapacity.
//
// ctx bounds the making of the connection alone. An open connection counts as use of the sandbox. It has CloseWrite;
// reading one that the server reset is io.ErrUnexpectedEOF, and one that outlives its sandbox or handle fails with
// backend.ErrLost, backend.ErrUnavailable or backend.ErrClosed. A Write that runs out of time ends its direction.
func (s *Sandbox) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	defer func() { err = WrapError("DialContext", s.b.Name(), s.o.ID, err) }()
	if network != "tcp" {
		return nil, fmt.Errorf("%w: network %q: must be tcp", backend.ErrUnsupported, sanitize.Message(network))
	}
	var d *client.Dialed
	err = s.call(ctx, true, func(ctx context.Context, conn *client.Conn) (err error) {
		d, err = conn.Dial(ctx, wire.DialRequest{Address: address})
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.enter(); err != nil { // it closed meanwhile
		_ = d.Close()
		return nil, err
	}
	return &dialedConn{Dialed: d, s: s, leave: sync.OnceFunc(s.leave)}, nil
}

// dialedConn is a connection to a port of the sandbox, with the errors of a net.Conn and of a Sandbox.
type dialedConn struct {
	*client.Dialed
	s     *Sandbox
	leave func()
}

// Read reads from the connection.
func (c *dialedConn) Read(p []byte) (int, error) {
	n, err := c.Dialed.Read(p)
	return n, c.explain("read", err)
}

// Write writes to the connection.
func (c *dialedConn) Write(p []byte) (int, error) {
	n, err := c.Dialed.Write(p)
	return n, c.explain("write", err)
}

// Close closes the connection.
func (c *dialedConn) Close() error {
	defer c.leave()
	return c.Dialed.Close()
}

// explain returns the reason that matters most for a failed read or write.
func (c *dialedConn) explain(op string, err error) error {
	var timeout net.Error
	switch {
	case err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe):
		return err
	case errors.As(err, &timeout) && timeout.Timeout():
		return os.ErrDeadlineExceeded
	case c.s.ctx.Err() != nil:
		err = errClosed
	case errors.Is(err, client.ErrConnLost):
		err = c.s.verify(c.s.ctx, err) // the sandbox may be gone, or only the way to it
	}
	return WrapError(op, c.s.b.Name(), c.s.o.ID, err)
}
