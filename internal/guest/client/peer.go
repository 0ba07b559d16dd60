package client

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Peer is a connection from a command. It implements net.Conn and CloseWrite.
type Peer struct {
	*peerConn
	wire.Accepted
}

// peerConn is the stream of an accepted connection. Each direction consists of data frames and an end.
type peerConn struct {
	*call
	closed atomic.Bool // Close was called
	ended  atomic.Bool // the command has ended the direction to the host
	gone   atomic.Bool // the command has then closed the connection

	reading sync.Mutex // guards the fields below
	prefix  [wire.FramePrefixSize]byte
	have    int   // number of bytes in prefix
	left    int   // remaining bytes of the current frame
	readErr error // error of all later reads

	writing  sync.Mutex // guards the fields below
	buf      []byte
	writeErr error // error of all later writes
}

// Read reads data from the command. It does not read ahead, so the command blocks if the host does not read.
func (c *peerConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.closed.Load() { // data received before Close is dropped
		return 0, net.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	for c.left == 0 {
		if err := c.nextFrame(); err != nil {
			return 0, err
		}
	}
	n, err := c.st.Read(p[:min(len(p), c.left)])
	c.left -= n
	if err != nil && n == 0 {
		return 0, c.readFailed(err)
	}
	return n, nil
}

// nextFrame reads the prefix of a frame. The caller must hold reading.
func (c *peerConn) nextFrame() error {
	if c.readErr != nil {
		return c.readErr
	}
	for c.have < len(c.prefix) {
		n, err := c.st.Read(c.prefix[c.have:])
		c.have += n
		if err != nil {
			return c.readFailed(err)
		}
	}
	c.have = 0
	f, _, body, err := wire.ParsePrefix(c.prefix[:])
	switch {
	case err == nil && f.Channel == wire.ChanConn && f.Kind == wire.KindEOF:
		c.readErr = io.EOF
		c.ended.Store(true)
		_ = c.st.SetReadDeadline(time.Time{}) // cannot fail
		go c.awaitEnd()
		return io.EOF
	case err != nil || f.Channel != wire.ChanConn:
		c.readErr = protocolErrorf("frame kind %d on a connection", f.Kind)
		c.abort()
		return c.readErr
	}
	c.left = body
	return nil
}

// awaitEnd ends the connection when the command closes it completely, to notify hosts without a pending Read.
func (c *peerConn) awaitEnd() {
	for {
		_, err := c.st.Read(make([]byte, 1)) // data after the end is a protocol violation, which also ends the connection
		if c.closed.Load() || !errors.Is(err, yamux.ErrTimeout) {
			break
		}
		_ = c.st.SetReadDeadline(time.Time{}) // the deadline was set before the end arrived
	}
	c.gone.Store(true)
	c.abort()
}

// readFailed converts the error of a failed read from the stream. An exceeded deadline does not end the connection. The
// caller must hold reading.
func (c *peerConn) readFailed(err error) error {
	switch {
	case c.closed.Load():
		err = net.ErrClosed
	case errors.Is(err, yamux.ErrTimeout):
		return err
	case errors.Is(err, io.EOF) && !c.conn.session.IsClosed():
		err = io.ErrUnexpectedEOF // the end frame is missing
	default:
		err = c.conn.explain(err)
	}
	c.readErr = err
	return err
}

// Write sends data to the command. It blocks if the command does not read.
func (c *peerConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	done := 0
	for part := range slices.Chunk(p, wire.MaxData) {
		if c.writeErr != nil {
			return done, c.writeErr
		}
		c.buf = wire.AppendData(c.buf[:0], wire.ChanConn, part)
		if err := c.send(c.buf); err != nil {
			return done, err
		}
		done += len(part)
	}
	return done, nil
}

// CloseWrite ends the direction to the command.
func (c *peerConn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.writeErr != nil {
		return c.writeErr
	}
	if err := c.send(wire.AppendEOF(nil, wire.ChanConn)); err != nil {
		return err
	}
	c.buf, c.writeErr = nil, net.ErrClosed
	return nil
}

// send sends a frame. If only a part was sent, later writes fail. The caller must hold writing.
func (c *peerConn) send(frame []byte) error {
	_, err := c.st.Write(frame)
	switch {
	case err == nil:
		return nil
	case c.closed.Load():
		c.writeErr = net.ErrClosed
	case c.gone.Load():
		c.writeErr = io.ErrClosedPipe
	case errors.Is(err, yamux.ErrTimeout):
		c.writeErr = err
	default:
		c.writeErr = c.conn.explain(err)
	}
	_ = c.st.Close() // prevents the guest agent from accepting the partial frame
	return c.writeErr
}

// Close closes the connection. Calling Close again has no effect.
func (c *peerConn) Close() error {
	if !c.closed.Swap(true) {
		c.abort()
	}
	return nil
}

// LocalAddr returns the address of the stream to the guest agent. It does not identify the connection.
func (c *peerConn) LocalAddr() net.Addr { return c.st.LocalAddr() }

// RemoteAddr returns the same as LocalAddr.
func (c *peerConn) RemoteAddr() net.Addr { return c.st.RemoteAddr() }

// SetDeadline sets the deadline for pending and future reads and writes.
func (c *peerConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets the deadline for pending and future reads.
func (c *peerConn) SetReadDeadline(t time.Time) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	if c.ended.Load() {
		return nil // no Read is waiting
	}
	return c.st.SetReadDeadline(t)
}

// SetWriteDeadline sets the deadline for pending and future writes. After a write exceeded the deadline, all later
// writes fail.
func (c *peerConn) SetWriteDeadline(t time.Time) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return c.st.SetWriteDeadline(t)
}
