package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// DialContext connects to a TCP port of a process in the sandbox, even if the sandbox has no network. The connection
// uses the same stream as the sandbox's commands. DialContext has the signature of net.Dialer.DialContext, so it can be
// used, for example, in an http.Transport. network must be "tcp". address must be a loopback address of the sandbox,
// for example "127.0.0.1:8080" or "localhost:8080". For any other IP address, the error wraps backend.ErrPermission.
// For other names and for port 0, it wraps backend.ErrInvalid. If no process listens on the port, the error wraps
// backend.ErrNotFound. If the sandbox already has 128 connections, the error wraps backend.ErrCapacity.
//
// ctx only limits the time to connect. An open connection counts as use of the sandbox. The connection has a CloseWrite
// method. If the server resets the connection, Read returns io.ErrUnexpectedEOF. After the sandbox or handle has ended,
// Read and Write return an error wrapping backend.ErrLost, backend.ErrUnavailable, or backend.ErrClosed. If a Write
// times out, no further writes are possible.
func (s *Sandbox) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	defer func() { err = WrapError("DialContext", s.b.Name(), s.o.ID, err) }()
	if network != "tcp" {
		return nil, fmt.Errorf("%w: network %q: must be tcp", backend.ErrUnsupported, sanitize.Message(network))
	}
	var d *client.Dialed
	err = s.call(ctx, true, 0, func(ctx context.Context, conn *client.Conn) (err error) {
		d, err = conn.Dial(ctx, wire.DialRequest{Address: address})
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.enter(); err != nil { // closed since then
		_ = d.Close()
		return nil, err
	}
	return &dialedConn{Dialed: d, s: s, leave: sync.OnceFunc(s.leave)}, nil
}

// dialedConn is a connection to a port of the sandbox. The errors match the errors of net.Conn and Sandbox.
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

// explain returns the most important reason for a failed read or write.
func (c *dialedConn) explain(op string, err error) error {
	var timeout net.Error
	final := []error{io.EOF, net.ErrClosed, io.ErrUnexpectedEOF, io.ErrClosedPipe}
	switch {
	case err == nil || slices.ContainsFunc(final, func(target error) bool { return errors.Is(err, target) }):
		return err
	case errors.As(err, &timeout) && timeout.Timeout():
		return os.ErrDeadlineExceeded
	case c.s.ctx.Err() != nil:
		err = errClosed
	case errors.Is(err, client.ErrConnLost):
		err = c.s.verify(c.s.ctx, err) // either the sandbox or only the connection is lost
	}
	return WrapError(op, c.s.b.Name(), c.s.o.ID, err)
}
