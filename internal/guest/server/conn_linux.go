package server

import (
	"bufio"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Limits of a connection.
const (
	writePatience = 20 * time.Second // time for a host to read writeSize bytes
	writeSize     = 64 << 10
	readSize      = 64 << 10
	streamClosing = 30 * time.Second
	// sendWindow is the amount of data a host may send ahead. With yamux's default of 256 KiB, a host behind an engine's
	// exec spends most of the time waiting for window updates.
	sendWindow = 1 << 20
)

var errVersion = errors.New("the host speaks another version of the link")

// sessionConn is the connection of one host, below the multiplexer.
type sessionConn struct {
	s       *Server
	rw      net.Conn
	in      *bufio.Reader
	out     *wire.MuxWriter
	frames  wire.MuxFrames
	silence time.Duration // a host silent for this long counts as disconnected
	bye     atomic.Bool   // the host said goodbye and canceled all pending requests
}

// ServeConn serves a host. It closes the connection at the end or if the host is silent for too long. An engine may
// keep a bridge's input open after the host died, and the bridge waits for this close.
func (s *Server) ServeConn(rw net.Conn) error { return s.newConn(rw).serve() }

func (s *Server) newConn(rw net.Conn) *sessionConn {
	out := wire.NewMuxWriter(&deadlineWriter{rw})
	return &sessionConn{s: s, rw: rw, in: bufio.NewReaderSize(rw, readSize), out: out, silence: hostSilence}
}

func (c *sessionConn) serve() error {
	defer c.rw.Close()
	if err := c.rw.SetReadDeadline(time.Now().Add(c.silence)); err != nil {
		return err
	}
	version, err := wire.ReadMarker(c.in, wire.FromHost)
	if err != nil {
		return err
	}
	c.s.orphan.count(1) // counted before the host gets the acknowledgment
	defer c.s.orphan.count(-1)
	if err := c.greet(version); err != nil {
		return err
	}
	mux, err := yamux.Server(c, muxConfig())
	if err != nil {
		return err
	}
	err = c.s.serveSession(mux, c)
	_ = mux.Close() // already ended; waits for the goroutines
	return err
}

// greet sends the acknowledgment and the hello. A host with another protocol version only gets the acknowledgment.
func (c *sessionConn) greet(version uint16) error {
	b := wire.AppendMarker(nil, wire.FromGuest, wire.ProtocolVersion)
	var err error
	if version == wire.ProtocolVersion {
		if b, err = wire.AppendAnswer(b, c.s.hello()); err != nil {
			return err
		}
	}
	if _, err = (&deadlineWriter{c.rw}).Write(b); err == nil && version != wire.ProtocolVersion {
		err = errVersion
	}
	return err
}

func muxConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	cfg.EnableKeepAlive = false // the host sends heartbeats, and Read detects when they stop
	cfg.ConnectionWriteTimeout = writePatience
	cfg.StreamCloseTimeout = streamClosing
	cfg.StreamOpenTimeout = 0
	cfg.MaxStreamWindowSize = sendWindow
	return cfg
}

// deadlineWriter bounds the time of every write, to prevent unresponsive hosts from blocking the guest agent.
type deadlineWriter struct{ rw net.Conn }

func (d *deadlineWriter) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, writeSize) {
		if err := d.rw.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
			return n, err
		}
		m, err := d.rw.Write(part)
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Read reads data for the multiplexer. If a host was silent for too long or said goodbye, Read returns an error.
func (c *sessionConn) Read(p []byte) (int, error) {
	if c.bye.Load() {
		return 0, io.EOF
	}
	if err := c.rw.SetReadDeadline(time.Now().Add(c.silence)); err != nil {
		return 0, err
	}
	n, err := c.in.Read(p)
	_ = c.frames.Follow(p[:n], func(header []byte) error { // the function returns no error
		if header[1] == wire.MuxGoAway {
			c.bye.Store(true)
		}
		return nil
	})
	return n, err
}

func (c *sessionConn) Write(p []byte) (int, error) { return c.out.Write(p) }

// Close makes pending reads and writes return.
func (c *sessionConn) Close() error { return c.rw.Close() }
