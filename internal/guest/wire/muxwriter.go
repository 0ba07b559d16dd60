package wire

import (
	"encoding/binary"
	"io"
	"sync"
	"time"
)

// The multiplexer's header, as far as MuxWriter and the host's checks need it.
const (
	MuxHeaderSize   = 12
	MuxData         = 0 // type of a frame with data
	MuxWindowUpdate = 1 // type of a frame that grants window, and by its flags opens or closes a stream
	MuxPing         = 2
	MuxGoAway       = 3
	MuxFlagSYN      = 1
)

// holdFor is how long a frame that only opens, confirms or closes a stream waits for company. Such a frame goes ahead
// of a request or an answer that follows at once, or of the next one.
const holdFor = 2 * time.Millisecond

// MuxWriter packs what a multiplexer writes into chunks. The multiplexer writes a frame's header and its body
// separately; each write into a container's stream costs a wake-up in every process on the way, so header, body and
// small frames before them go out together.
//
// Write is for the multiplexer alone; End and Bye may be called concurrently with it.
type MuxWriter struct {
	mu         sync.Mutex // guards all below
	w          io.Writer
	generation uint32
	buf        []byte // room for a chunk's header, then what is pending
	body       int    // bytes of a frame's body that are still to come
	hold       *time.Timer
	err        error
}

// NewMuxWriter writes chunks of a generation to w, each in one call of Write.
func NewMuxWriter(w io.Writer, generation uint32) *MuxWriter {
	m := &MuxWriter{w: w, generation: generation}
	m.buf = make([]byte, ChunkHeaderSize, ChunkHeaderSize+MaxChunk)
	m.hold = time.AfterFunc(time.Hour, m.flushHeld)
	m.hold.Stop()
	return m
}

// Write takes a frame's header or body.
func (m *MuxWriter) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wait := m.expect(p)
	for rest := p; len(rest) > 0 && m.err == nil; {
		n := min(len(rest), cap(m.buf)-len(m.buf))
		m.buf = append(m.buf, rest[:n]...)
		rest = rest[n:]
		if len(m.buf) == cap(m.buf) {
			m.flush()
		}
	}
	if wait == 0 {
		m.flush()
	} else if wait > 0 {
		m.hold.Reset(wait)
	}
	if m.err != nil {
		return 0, m.err
	}
	return len(p), nil
}

// expect follows the frames and returns how long p may wait: not, for a while, or (negative) until its body comes.
func (m *MuxWriter) expect(p []byte) time.Duration {
	if m.body > 0 {
		m.body -= min(m.body, len(p))
		if m.body > 0 {
			return -1
		}
		return 0
	}
	if len(p) != MuxHeaderSize {
		return 0
	}
	switch flags := binary.BigEndian.Uint16(p[2:]); {
	case p[1] == MuxData:
		if m.body = int(binary.BigEndian.Uint32(p[8:])); m.body > 0 {
			return -1
		}
	case p[1] == MuxWindowUpdate && flags != 0:
		return holdFor
	}
	return 0
}

func (m *MuxWriter) flushHeld() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.body == 0 {
		m.flush()
	}
}

// flush writes what is pending. The caller holds mu.
func (m *MuxWriter) flush() {
	if len(m.buf) == ChunkHeaderSize || m.err != nil {
		return
	}
	m.hold.Stop()
	m.chunk()
}

func (m *MuxWriter) chunk() {
	if err := putChunkHeader(m.buf, m.generation, m.buf[ChunkHeaderSize:]); err != nil {
		m.err = err
		return
	}
	_, m.err = m.w.Write(m.buf)
	m.buf = m.buf[:ChunkHeaderSize]
}

// Bye flushes and announces the end of this generation. No more can be written.
func (m *MuxWriter) Bye() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.flush()
	if m.err == nil {
		m.chunk()
	}
	m.end()
}

// End makes every further Write fail. Nothing more is sent.
func (m *MuxWriter) End() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end()
}

func (m *MuxWriter) end() {
	m.hold.Stop()
	if m.err == nil {
		m.err = io.ErrClosedPipe
	}
}
