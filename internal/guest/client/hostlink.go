package client

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// readSize is the maximum size of one read from the stream.
const readSize = 256 << 10

// hostLink is the host's end of the multiplexer's stream.
type hostLink struct {
	in  *bufio.Reader
	out *wire.MuxWriter

	guarded bool // the incoming data belongs to the multiplexer
	frames  wire.MuxFrames

	mu    sync.Mutex // guards cause
	cause error      // first reason why the link ended

	shut func() error // closes rw once
}

func newHostLink(rw io.ReadWriteCloser) *hostLink {
	return &hostLink{in: bufio.NewReaderSize(rw, readSize), out: wire.NewMuxWriter(rw), shut: sync.OnceValue(rw.Close)}
}

// awaitAck reads the protocol version of the guest agent.
func (l *hostLink) awaitAck() error {
	version, err := wire.ReadMarker(l.in, wire.FromGuest)
	switch {
	case errors.Is(err, wire.ErrMarker):
		return protocolErrorf("%v", err)
	case err != nil: // a driver's stream may report a lost sandbox
		return fmt.Errorf("%w: %w", ErrConnLost, err)
	case version != wire.ProtocolVersion:
		return fmt.Errorf("%w: it speaks version %d of the protocol, this host version %d; remove the sandbox with "+
			"--keep-workspace and open it again, or use the Workcell that created it", ErrVersion, version, wire.ProtocolVersion)
	}
	return nil
}

// Read returns data of the guest agent after validating it.
func (l *hostLink) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	if l.guarded {
		if bad := l.frames.Follow(p[:n], checkFrame); bad != nil {
			l.fail(bad)
			return 0, l.reason()
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		l.fail(fmt.Errorf("%w: the stream ended", ErrConnLost))
	case err != nil:
		l.fail(fmt.Errorf("%w: %v", ErrConnLost, err))
	default:
		return n, nil
	}
	return n, l.reason()
}

// Write is called by the multiplexer.
func (l *hostLink) Write(p []byte) (int, error) {
	n, err := l.out.Write(p)
	if err != nil {
		l.fail(fmt.Errorf("%w: %v", ErrConnLost, err))
	}
	return n, err
}

// Close closes the stream.
func (l *hostLink) Close() error { return l.shut() }

// fail records the reason why the link ended.
func (l *hostLink) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = cmp.Or(l.cause, err)
}

// reason returns the reason recorded by fail. If none was recorded, the link ended because of a missing heartbeat.
func (l *hostLink) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = cmp.Or(l.cause, fmt.Errorf("%w: the guest agent does not respond", ErrConnLost))
	return l.cause
}

// checkFrame validates a header of the multiplexer before the multiplexer reads it. A guest agent may only answer. It
// must not open streams or send ping requests, because each of them would use the host's memory.
func checkFrame(head []byte) error {
	kind, flags, length := head[1], binary.BigEndian.Uint16(head[2:]), binary.BigEndian.Uint32(head[8:])
	if head[0] != 0 || kind > wire.MuxGoAway || flags&wire.MuxFlagSYN != 0 {
		return protocolErrorf("multiplexer frame version %d, type %d, flags %d", head[0], kind, flags)
	}
	if kind == wire.MuxData && length > receiveWindow {
		return protocolErrorf("multiplexer frame of %d bytes", length)
	}
	return nil
}
