package server

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// handleAccept hands a host the next connection to a service, and carries its bytes until it ends.
func (s *Server) handleAccept(r *request, req *wire.AcceptRequest) error {
	sv := s.services[req.Name]
	if sv == nil {
		return wire.Errorf(wire.CodeUnsupported, "unknown service %.40q", req.Name)
	}
	o := sv.park(r.mux)
	if o == nil {
		return notListening(req.Name)
	}
	h := newCarrier(r)
	defer r.Release()
	c, err := sv.next(o, h)
	o.parked.Done()
	if c == nil {
		return err
	}
	defer c.end()
	return h.carry(c.Conn, c.who)
}

// next waits for a connection for a host, until that leaves or loses the service.
func (sv *service) next(o *ownership, h *carrier) (*serviceConn, error) {
	var c *serviceConn
	select {
	case c = <-sv.handoff:
		c.unwatch()
	case <-o.over:
	case <-h.left:
	}
	switch {
	case closed(h.left) || h.r.mux.IsClosed(): // the streams of a session learn of its end one by one
		sv.again(c)
		return nil, nil
	case closed(o.over):
		sv.again(c)
		return nil, notListening(sv.name)
	}
	return c, nil
}

// again offers a connection, if there is one, that a host left or lost before it got it.
func (sv *service) again(c *serviceConn) {
	if c == nil {
		return
	}
	sv.mu.Lock()
	sv.waiting++
	sv.mu.Unlock()
	go sv.offer(c)
}

func notListening(name string) error {
	return wire.Errorf(wire.CodeNotFound, "this host does not listen as %.40q, or no longer does", name)
}

// carrier carries the bytes of a connection from and to a host. One frame a direction is all that it holds of them.
type carrier struct {
	r       *request
	conn    atomic.Pointer[net.Conn] // nil before there is one
	stuck   *time.Timer              // calls probe; runs while a write waits for the connection to take it
	writing atomic.Bool              // a write waits
	ended   atomic.Bool              // toHost has sent the end of its direction, or is about to
	left    chan struct{}            // closed when nothing more can come from the host
	hostEnd chan struct{}            // closed when the host has ended its direction
	refused chan struct{}            // closed when the connection takes nothing more
}

// probeEvery is how often a host is looked for while the connection takes nothing of what it sent.
const probeEvery = 10 * time.Second

// newCarrier begins to take what the host sends.
func newCarrier(r *request) *carrier {
	h := &carrier{r: r, left: make(chan struct{}), hostEnd: make(chan struct{}), refused: make(chan struct{})}
	h.stuck = time.AfterFunc(probeEvery, h.probe)
	h.stuck.Stop()
	go h.fromHost()
	return h
}

// probe finds out whether the host has left, whose words are not read while what it said before waits: a stream that
// the host has closed takes nothing. Data of no bytes tells the host nothing, and may not follow the end.
func (h *carrier) probe() {
	if !h.writing.Load() {
		return
	}
	gone := h.r.mux.IsClosed()
	if !gone && !h.ended.Load() {
		_, err := h.r.Write(wire.AppendData(nil, wire.ChanConn, nil))
		gone = err != nil
	}
	if conn := h.conn.Load(); gone && conn != nil {
		_ = (*conn).SetDeadline(time.Unix(1, 0)) // fails for one that is closed
		return
	}
	h.stuck.Reset(probeEvery)
}

// write passes what the host sent on to the connection.
func (h *carrier) write(conn net.Conn, p []byte) error {
	h.writing.Store(true)
	h.stuck.Reset(probeEvery)
	_, err := conn.Write(p)
	h.writing.Store(false)
	h.stuck.Stop()
	return err
}

// closed reports whether c is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// fromHost passes on what the host sends, until it closes the stream or breaks a rule. What a connection does not take
// any more is dropped: it may still be sending.
func (h *carrier) fromHost() {
	h.frames()
	close(h.left)
	_ = h.r.SetWriteDeadline(time.Unix(1, 0)) // frees toHost from a host that reads nothing
	if conn := h.conn.Load(); conn != nil {
		_ = (*conn).SetDeadline(time.Unix(1, 0)) // and from a command that sends nothing
	}
}

func (h *carrier) frames() {
	var buf []byte
	ended, refused := false, false
	for {
		f, err := wire.ReadFrame(h.r, buf)
		conn := h.conn.Load()
		if err != nil || conn == nil || ended || f.Channel != wire.ChanConn {
			return
		}
		if f.Kind == wire.KindEOF {
			ended = true
			closeWrite(*conn)
			close(h.hostEnd)
			continue
		}
		if !refused {
			if refused = h.write(*conn, f.Body) != nil; refused {
				close(h.refused)
			}
		}
		if cap(f.Body) > cap(buf) {
			buf = f.Body[:0]
		}
	}
}

// carry answers the request and serves the connection until both directions have ended, or one of the two sides is
// gone.
func (h *carrier) carry(conn net.Conn, answer any) error {
	h.conn.Store(&conn)
	if closed(h.left) {
		return nil
	}
	if err := h.r.Answer(answer); err != nil {
		return err
	}
	if !h.toHost(conn) {
		return nil
	}
	hungUp, release := watchHangup(conn)
	defer release()
	select {
	case <-h.hostEnd:
	case <-h.left:
	case <-h.refused:
	case <-hungUp:
	}
	return nil
}

// toHost passes on what the command sends, and reports whether it has ended its direction, or all of the connection.
func (h *carrier) toHost(c net.Conn) bool {
	buf := make([]byte, wire.FramePrefixSize+4<<10)
	for {
		n, err := c.Read(buf[wire.FramePrefixSize:])
		if n > 0 {
			wire.PutDataPrefix(buf, wire.ChanConn, n)
			if _, err := h.r.Write(buf[:wire.FramePrefixSize+n]); err != nil {
				return false
			}
			if wire.FramePrefixSize+n == len(buf) && n < wire.MaxData { // there is more at a time
				buf = make([]byte, wire.FramePrefixSize+wire.MaxData)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			h.ended.Store(true)
			_, err = h.r.Write(wire.AppendEOF(nil, wire.ChanConn))
			return err == nil
		case err != nil:
			return false
		}
	}
}

// closeWrite ends the direction to the command. One that is gone needs no end.
func closeWrite(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

// AwaitHangup returns when the other end of the connection is closed, and not only shut down, or the connection itself
// is.
func AwaitHangup(conn *net.UnixConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, _ := unix.Poll(p, 0)
		return n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
}
