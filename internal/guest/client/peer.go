package client

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Peer is a connection that a command made, a net.Conn with CloseWrite.
type Peer struct {
	*peerConn
	wire.Accepted
}

// peerConn is the stream of an accepted connection: data frames and an end in each direction.
type peerConn struct {
	*call
	closed atomic.Bool // by Close
	ended  atomic.Bool // the command ended its direction
	gone   atomic.Bool // and then the connection

	reading sync.Mutex // guards the fields below
	prefix  [wire.FramePrefixSize]byte
	have    int   // bytes of prefix
	left    int   // bytes of the current frame
	readErr error // of every later Read

	writing  sync.Mutex // guards the fields below
	buf      []byte
	writeErr error // of every later Write
}

// Read reads what the command sent. Nothing is read ahead: a command that nobody reads from has to wait.
func (c *peerConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.closed.Load() { // what came before, and nobody read, is nobody's
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

// nextFrame reads the prefix of a frame. The caller holds reading.
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

// awaitEnd ends the connection when the command has closed it, not only its direction: who only writes could not know.
func (c *peerConn) awaitEnd() {
	for {
		_, err := c.st.Read(make([]byte, 1)) // a byte behind the end is a fault of the guest, and ends the connection too
		if c.closed.Load() || !errors.Is(err, yamux.ErrTimeout) {
			break
		}
		_ = c.st.SetReadDeadline(time.Time{}) // it was set while the end came
	}
	c.gone.Store(true)
	c.abort()
}

// readFailed returns what a failed read of the stream means. A time that has run out is not the end. The caller holds
// reading.
func (c *peerConn) readFailed(err error) error {
	switch {
	case c.closed.Load():
		err = net.ErrClosed
	case errors.Is(err, yamux.ErrTimeout):
		return err
	case errors.Is(err, io.EOF) && !c.conn.session.IsClosed():
		err = io.ErrUnexpectedEOF // without an end before it
	default:
		err = c.conn.explain(err)
	}
	c.readErr = err
	return err
}

// Write sends to the command, at the pace at which it reads.
func (c *peerConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	done := 0
	for done < len(p) && c.writeErr == nil {
		n := min(len(p)-done, wire.MaxData)
		c.buf = wire.AppendData(c.buf[:0], wire.ChanConn, p[done:done+n])
		if err := c.send(c.buf); err != nil {
			return done, err
		}
		done += n
	}
	if len(p) == 0 || done == len(p) {
		return done, nil
	}
	return done, c.writeErr
}

// CloseWrite ends the direction to the command.
func (c *peerConn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.writeErr != nil {
		return c.writeErr
	}
	err := c.send(wire.AppendEOF(nil, wire.ChanConn))
	c.buf = nil
	if c.writeErr == nil {
		c.writeErr = net.ErrClosed
	}
	return err
}

// send sends a frame. After part of one nothing more can be sent. The caller holds writing.
func (c *peerConn) send(frame []byte) error {
	_, err := c.st.Write(frame)
	if err == nil {
		return nil
	}
	switch {
	case c.closed.Load():
		c.writeErr = net.ErrClosed
	case c.gone.Load():
		c.writeErr = io.ErrClosedPipe
	case errors.Is(err, yamux.ErrTimeout):
		c.writeErr = err
	default:
		c.writeErr = c.conn.explain(err)
	}
	_ = c.st.Close() // the guest must not take a part for the whole
	return c.writeErr
}

// Close ends the connection. Idempotent.
func (c *peerConn) Close() error {
	if !c.closed.Swap(true) {
		c.abort()
	}
	return nil
}

// LocalAddr and RemoteAddr have no meaning of their own: the connection is a stream between host and guest.
func (c *peerConn) LocalAddr() net.Addr { return c.st.LocalAddr() }

// RemoteAddr returns the same as LocalAddr.
func (c *peerConn) RemoteAddr() net.Addr { return c.st.RemoteAddr() }

// SetDeadline bounds reads and writes that are under way and to come.
func (c *peerConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline bounds reads.
func (c *peerConn) SetReadDeadline(t time.Time) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	if c.ended.Load() {
		return nil // no Read waits any more
	}
	return c.st.SetReadDeadline(t)
}

// SetWriteDeadline bounds writes. After one that ran out of time nothing more can be sent.
func (c *peerConn) SetWriteDeadline(t time.Time) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return c.st.SetWriteDeadline(t)
}
