package server

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Stream is what a guest serves a host over. Deadlines keep a host that stopped reading from holding the guest.
type Stream interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// Times of a link.
const (
	writePatience = 20 * time.Second       // a write that a host does not take ends its session
	byePatience   = time.Second            // a farewell need not arrive
	reopenPause   = 200 * time.Millisecond // between looks at a stream that came to its end and may be opened again
	streamClosing = 30 * time.Second
)

// link is the guest's end of one stream. Hosts follow each other on it, each with a nonce of its own.
type link struct {
	s    *Server
	rw   Stream
	in   *wire.LinkReader
	once bool         // the stream's end is final
	own  bool         // the stream is its hosts' alone and ends when they say nothing
	next *wire.Marker // preamble of the host that is to be served next

	silence time.Duration // of a host that is gone
}

var (
	errNextHost = errors.New("another host has come")
	errSilent   = errors.New("the host has gone silent")
)

// ServeAttach serves hosts, one after the other, on the stream that the sandbox was started with. With final the end
// of the stream is the end of ServeAttach; otherwise it may be opened again, as a FIFO is, and ServeAttach never returns.
func (s *Server) ServeAttach(rw Stream, final bool) error {
	return s.newLink(rw, final).serve()
}

// ServeConn serves one connection of its own and closes it at its end, or when no host sends anything on it: an engine
// can hold a bridge's input open after the host has died, and the bridge waits for this end.
func (s *Server) ServeConn(rw Stream) error {
	defer rw.Close()
	l := s.newLink(rw, true)
	l.own = true
	return l.serve()
}

func (s *Server) newLink(rw Stream, final bool) *link {
	return &link{s: s, rw: rw, in: wire.NewLinkReader(rw, wire.FromHost), once: final, silence: hostSilence}
}

func (l *link) serve() error {
	for {
		m, err := l.preamble()
		if errors.Is(err, io.EOF) && !l.once {
			time.Sleep(reopenPause)
			continue
		}
		if err != nil {
			return err
		}
		err = l.session(m)
		if err != nil {
			l.s.logf("session ended: %v", err)
		}
		if l.own && errors.Is(err, errSilent) {
			return err
		}
	}
}

// preamble waits for the next host. Chunks of hosts whose session has ended are answered with its end, once each.
func (l *link) preamble() (wire.Marker, error) {
	if m := l.next; m != nil {
		l.next = nil
		return *m, l.rw.SetReadDeadline(time.Time{})
	}
	var deadline time.Time
	if l.own {
		deadline = time.Now().Add(l.silence)
	}
	if err := l.rw.SetReadDeadline(deadline); err != nil {
		return wire.Marker{}, err
	}
	var told uint32
	for {
		item, err := l.in.Next()
		switch {
		case errors.Is(err, wire.ErrLostSync):
		case err != nil:
			return wire.Marker{}, err
		case item.Marker != nil:
			return *item.Marker, l.rw.SetReadDeadline(time.Time{})
		case item.Generation != told:
			told = item.Generation
			wire.NewMuxWriter(&deadlineWriter{l.rw, byePatience}, told).Bye()
		}
	}
}

// session serves one host until it is gone or another one takes its place.
func (l *link) session(m wire.Marker) error {
	out := wire.NewMuxWriter(&deadlineWriter{l.rw, writePatience}, m.Nonce.Generation())
	defer out.End()
	if l.own { // before the host knows that it is connected
		l.s.secondary.Add(1)
		defer l.s.secondary.Add(-1)
	}
	if err := l.greet(m); err != nil {
		return err
	}
	if m.Version != wire.ProtocolVersion {
		return errors.New("the host speaks another version of the link")
	}
	conn := &sessionConn{link: l, out: out, generation: m.Nonce.Generation(), gone: make(chan struct{})}
	conn.touch()
	mux, err := yamux.Server(conn, muxConfig())
	if err != nil {
		return err
	}
	l.s.orphan.count(1)
	defer l.s.orphan.count(-1)
	go conn.watch(mux)
	l.s.serveSession(mux, conn)
	_ = mux.Close() // it has ended already, this waits for its goroutines
	err = conn.cause()
	if err == nil { // the guest itself ended it
		wire.NewMuxWriter(&deadlineWriter{l.rw, byePatience}, conn.generation).Bye()
		if conn.silent.Load() {
			err = errSilent
		}
	}
	return err
}

// greet sends the acknowledgement and the hello. A host of another version gets the first only.
func (l *link) greet(m wire.Marker) error {
	b := wire.AppendMarker(nil, wire.FromGuest, wire.Marker{Nonce: m.Nonce, Version: wire.ProtocolVersion})
	if m.Version == wire.ProtocolVersion {
		hello, err := wire.AppendAnswer(nil, l.s.hello())
		if err != nil {
			return err
		}
		if b, err = wire.AppendChunk(b, m.Nonce.Generation(), hello); err != nil {
			return err
		}
	}
	_, err := (&deadlineWriter{l.rw, writePatience}).Write(b)
	return err
}

// sendWindow is how much of an upload a host may have under way. With yamux's own 256 KiB a host at the other end of an
// engine's attach mostly waits for permission to go on.
const sendWindow = 1 << 20

func muxConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	cfg.EnableKeepAlive = false // the host sends heartbeats, sessionConn.watch notices when they stop
	cfg.ConnectionWriteTimeout = writePatience
	cfg.StreamCloseTimeout = streamClosing
	cfg.StreamOpenTimeout = 0
	cfg.MaxStreamWindowSize = sendWindow
	return cfg
}

// deadlineWriter bounds every write.
type deadlineWriter struct {
	rw       Stream
	patience time.Duration
}

func (d *deadlineWriter) Write(p []byte) (int, error) {
	if err := d.rw.SetWriteDeadline(time.Now().Add(d.patience)); err != nil {
		return 0, err
	}
	return d.rw.Write(p)
}

// sessionConn is the stream below one host's multiplexer: the chunks of its generation.
type sessionConn struct {
	link       *link
	out        *wire.MuxWriter
	generation uint32
	rest       []byte
	heard      atomic.Int64 // when the host was last heard of, in ms since the guest's start

	reading sync.Mutex // held by Read; before mu

	mu    sync.Mutex // guards the fields below
	err   error      // why the session ended; nil when the guest ended it
	ended bool

	silent  atomic.Bool // the host said nothing for too long
	bye     atomic.Bool // the host said that it leaves, and gave up what it waits for
	closing sync.Once
	gone    chan struct{} // closed by Close
}

func (c *sessionConn) touch() { c.heard.Store(time.Since(c.link.s.started).Milliseconds()) }

// Read returns the multiplexer its bytes.
func (c *sessionConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.over() {
		return 0, io.EOF
	}
	for len(c.rest) == 0 {
		item, err := c.link.in.Next()
		if err == nil {
			c.touch()
		}
		switch {
		case err != nil:
			return 0, c.fail(err)
		case item.Marker != nil:
			c.link.next = item.Marker
			return 0, c.fail(errNextHost)
		case item.Generation != c.generation: // of a host that was superseded and does not know it yet
		case len(item.Body) == 0:
			c.bye.Store(true)
			return 0, c.fail(io.EOF)
		default:
			c.rest = item.Body
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *sessionConn) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func (c *sessionConn) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && !c.ended {
		c.err = err
	}
	return err
}

// cause returns why the session ended, when no Read is under way any more and the link may read again. Only after Close.
func (c *sessionConn) cause() error {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *sessionConn) Write(p []byte) (int, error) {
	n, err := c.out.Write(p)
	if err != nil {
		return n, c.fail(err)
	}
	return n, nil
}

// Close makes a Read or Write that is under way return. The stream itself stays open for the next host, which finds its
// place again behind a chunk that was cut short.
func (c *sessionConn) Close() error {
	c.closing.Do(func() {
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
		_ = c.link.rw.SetReadDeadline(time.Unix(1, 0)) // a stream without deadlines cannot be served at all
		_ = c.link.rw.SetWriteDeadline(time.Unix(1, 0))
		close(c.gone)
	})
	return nil
}

// watch ends the session when its host has gone silent.
func (c *sessionConn) watch(mux *yamux.Session) {
	tick := time.NewTicker(c.link.silence / 6)
	defer tick.Stop()
	for {
		select {
		case <-c.gone:
			return
		case <-tick.C:
			silent := time.Since(c.link.s.started).Milliseconds() - c.heard.Load()
			if silent > c.link.silence.Milliseconds() {
				c.silent.Store(true)
				_ = mux.Close() // serveSession reports the end
				return
			}
		}
	}
}
