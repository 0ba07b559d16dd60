package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// hostLink is the host's end of the link: the stream that the multiplexer runs on.
type hostLink struct {
	rw    io.ReadWriteCloser
	in    *wire.LinkReader
	out   *wire.MuxWriter
	nonce wire.Nonce

	rest    []byte // of the current chunk
	guarded bool   // what comes is the multiplexer's
	guard   muxGuard

	mu    sync.Mutex // guards cause
	cause error      // why the link ended, the first reason counts

	closing sync.Once
}

func newHostLink(rw io.ReadWriteCloser, nonce wire.Nonce) *hostLink {
	in := wire.NewLinkReader(rw, wire.FromGuest)
	in.Await(nonce)
	return &hostLink{
		rw:    rw,
		in:    in,
		out:   wire.NewMuxWriter(rw, nonce.Generation()),
		nonce: nonce,
	}
}

// awaitAck drops all that the guest sent before it saw our preamble.
func (l *hostLink) awaitAck() error {
	item, err := l.in.Next()
	if err != nil {
		return fmt.Errorf("%w: %v", ErrConnLost, err)
	}
	if item.Marker.Version != wire.ProtocolVersion {
		return protocolErrorf("it uses version %d of the link, this host uses %d",
			item.Marker.Version, wire.ProtocolVersion)
	}
	return nil
}

// Read returns the bytes of this generation's chunks.
func (l *hostLink) Read(p []byte) (int, error) {
	for len(l.rest) == 0 {
		body, err := l.next()
		if err != nil {
			l.fail(err)
			return 0, l.reason()
		}
		l.rest = body
	}
	n := copy(p, l.rest)
	if l.guarded {
		if err := l.guard.check(l.rest[:n]); err != nil {
			l.fail(err)
			return 0, l.reason()
		}
	}
	l.rest = l.rest[n:]
	return n, nil
}

func (l *hostLink) next() ([]byte, error) {
	item, err := l.in.Next()
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: the stream ended", ErrConnLost)
	case errors.Is(err, ErrSuperseded): // a stream that can have one holder only reports that itself
		return nil, ErrSuperseded
	case err != nil:
		return nil, fmt.Errorf("%w: %v", ErrConnLost, err)
	case item.Marker != nil || item.Generation != l.nonce.Generation():
		return nil, ErrSuperseded
	case len(item.Body) == 0:
		return nil, fmt.Errorf("%w: closed by the guest agent", ErrConnLost)
	}
	return item.Body, nil
}

// Write is called by the multiplexer.
func (l *hostLink) Write(p []byte) (int, error) {
	n, err := l.out.Write(p)
	if errors.Is(err, ErrSuperseded) {
		l.fail(ErrSuperseded)
	} else if err != nil {
		l.fail(fmt.Errorf("%w: %v", ErrConnLost, err))
	}
	return n, err
}

// Close ends the stream.
func (l *hostLink) Close() error {
	var err error
	l.closing.Do(func() {
		err = l.rw.Close()
		l.out.End()
	})
	return err
}

// fail records why the link ended.
func (l *hostLink) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause == nil {
		l.cause = err
	}
}

// reason returns what fail recorded; a link that ended without one had no heartbeat.
func (l *hostLink) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause == nil {
		l.cause = fmt.Errorf("%w: the guest agent does not respond", ErrConnLost)
	}
	return l.cause
}

// explain prefers the recorded reason to err.
func (l *hostLink) explain(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		return l.cause
	}
	return protocolErrorf("%v", err)
}

// muxGuard checks the multiplexer's frames as they come in, before the multiplexer sees them. A guest may only answer:
// it opens no streams and sends no pings of its own, each of which would cost the host memory.
type muxGuard struct {
	head [wire.MuxHeaderSize]byte
	have int   // bytes of head
	skip int64 // bytes of data that follow
}

func (g *muxGuard) check(p []byte) error {
	for len(p) > 0 {
		if g.skip > 0 {
			n := min(int64(len(p)), g.skip)
			g.skip -= n
			p = p[n:]
			continue
		}
		n := copy(g.head[g.have:], p)
		g.have += n
		p = p[n:]
		if g.have < len(g.head) {
			return nil
		}
		g.have = 0
		if err := g.header(); err != nil {
			return err
		}
	}
	return nil
}

func (g *muxGuard) header() error {
	kind, flags := g.head[1], binary.BigEndian.Uint16(g.head[2:])
	length := binary.BigEndian.Uint32(g.head[8:])
	if g.head[0] != 0 || kind > wire.MuxGoAway || flags&wire.MuxFlagSYN != 0 {
		return protocolErrorf("multiplexer frame version %d, type %d, flags %d", g.head[0], kind, flags)
	}
	if kind == wire.MuxData {
		if length > receiveWindow {
			return protocolErrorf("multiplexer frame of %d bytes", length)
		}
		g.skip = int64(length)
	}
	return nil
}
