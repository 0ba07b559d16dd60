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

// handleAccept passes the next connection to a service to a host and copies the data until the connection ends.
func (s *Server) handleAccept(r *request, req *wire.AcceptRequest) error {
	sv := s.services[req.Name]
	if sv == nil {
		return wire.Errorf(wire.CodeUnsupported, "unknown service %.40q", req.Name)
	}
	o := sv.park(r.mux, req.Listen)
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

// next waits for a connection for a host. It returns early if the host disconnects or loses the service.
func (sv *service) next(o *ownership, h *carrier) (*serviceConn, error) {
	var c *serviceConn
	select {
	case c = <-sv.handoff:
		c.unwatch()
	case <-o.over:
	case <-h.left:
	}
	switch {
	case closed(h.left) || h.r.mux.IsClosed(): // streams of an ended session notice the end one by one
		sv.again(c)
		return nil, nil
	case closed(o.over):
		sv.again(c)
		return nil, notListening(sv.name)
	}
	return c, nil
}

// again offers a connection again if a host left or lost the service before it got the connection. c may be nil.
func (sv *service) again(c *serviceConn) {
	if c == nil {
		return
	}
	sv.countWaiting(1)
	go sv.offer(c)
}

func notListening(name string) error {
	return wire.Errorf(wire.CodeNotFound, "this host does not listen as %.40q, or no longer does", name)
}

// carrier copies the data of a connection from and to a host. It buffers at most one frame per direction.
type carrier struct {
	r       *request
	conn    atomic.Pointer[net.Conn] // nil until the connection exists
	stuck   *time.Timer              // calls probe; runs while a write is blocked
	writing atomic.Bool              // a write is blocked
	ended   atomic.Bool              // toHost has sent the end of the host's direction, or is about to
	left    chan struct{}            // closed when no more data can arrive from the host
	hostEnd chan struct{}            // closed when the host has ended the direction to the command
	refused chan struct{}            // closed when the connection accepts no more data
}

// probeEvery is the interval of checks whether the host is still connected, while a write to the connection is blocked.
const probeEvery = 10 * time.Second

// newCarrier starts reading data from the host.
func newCarrier(r *request) *carrier {
	h := &carrier{r: r, left: make(chan struct{}), hostEnd: make(chan struct{}), refused: make(chan struct{})}
	h.stuck = time.AfterFunc(probeEvery, h.probe)
	h.stuck.Stop()
	go h.fromHost()
	return h
}

// probe detects whether the host has disconnected. While a write is blocked, frames of the host are not read. If the
// host has closed the stream, sending data to it fails. probe sends an empty data frame, which has no meaning for the
// host and must not follow the end frame.
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
		_ = (*conn).SetDeadline(time.Unix(1, 0)) // fails if the connection is closed
		return
	}
	h.stuck.Reset(probeEvery)
}

// write writes data from the host to the connection.
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

// fromHost copies data from the host until the host closes the stream or violates the protocol. Data not accepted by
// the connection is dropped, because the connection may still send data.
func (h *carrier) fromHost() {
	h.frames()
	close(h.left)
	_ = h.r.SetWriteDeadline(time.Unix(1, 0)) // unblocks toHost if the host does not read
	if conn := h.conn.Load(); conn != nil {
		_ = (*conn).SetDeadline(time.Unix(1, 0)) // unblocks toHost if the command does not send
	}
}

func (h *carrier) frames() {
	var buf []byte
	for {
		f, err := wire.ReadFrame(h.r, buf)
		conn := h.conn.Load()
		if err != nil || conn == nil || closed(h.hostEnd) || f.Channel != wire.ChanConn {
			return
		}
		if f.Kind == wire.KindEOF {
			if c, ok := (*conn).(interface{ CloseWrite() error }); ok {
				_ = c.CloseWrite() // fails if the connection is closed
			}
			close(h.hostEnd)
			continue
		}
		if !closed(h.refused) && h.write(*conn, f.Body) != nil {
			close(h.refused)
		}
		if cap(f.Body) > cap(buf) {
			buf = f.Body[:0]
		}
	}
}

// carry answers the request and serves the connection until both directions have ended, or until one of the two sides
// disconnects.
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

// toHost copies data from the command. It reports whether the command has ended this direction or the whole connection.
func (h *carrier) toHost(c net.Conn) bool {
	buf := make([]byte, wire.FramePrefixSize+4<<10)
	for {
		n, err := c.Read(buf[wire.FramePrefixSize:])
		if n > 0 {
			wire.PutDataPrefix(buf, wire.ChanConn, n)
			if _, err := h.r.Write(buf[:wire.FramePrefixSize+n]); err != nil {
				return false
			}
			if wire.FramePrefixSize+n == len(buf) && n < wire.MaxData { // use a larger buffer for more data
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

// AwaitHangup returns when the other end of the connection is closed completely, or when the connection itself is
// closed. It does not return if the other end only shuts down one direction.
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
