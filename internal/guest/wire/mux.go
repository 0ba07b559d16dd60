package wire

import (
	"encoding/binary"
	"io"
)

// Fields of the multiplexer's header that MuxWriter and MuxFrames use.
const (
	MuxHeaderSize   = 12
	MuxData         = 0 // type of a frame with data
	MuxWindowUpdate = 1 // type of a frame that grants window, and by its flags opens or closes a stream
	MuxPing         = 2
	MuxGoAway       = 3 // a host's farewell
	MuxFlagSYN      = 1
)

// maxHeld bounds what a MuxWriter keeps for the next frame.
const maxHeld = 128 << 10

// MuxWriter writes a multiplexer's frames whole. The multiplexer writes a header and its body separately, and each
// write wakes every process on the way. Not safe for concurrent use.
type MuxWriter struct {
	w    io.Writer
	held []byte
}

// NewMuxWriter writes frames to w.
func NewMuxWriter(w io.Writer) *MuxWriter { return &MuxWriter{w: w} }

// Write takes a frame's header or body.
func (m *MuxWriter) Write(p []byte) (int, error) {
	header := len(m.held) == 0 && len(p) == MuxHeaderSize
	m.held = append(m.held, p...)
	if header && p[1] == MuxData && muxLength(p) > 0 {
		return len(p), nil // its body comes next
	}
	_, err := m.w.Write(m.held)
	m.held = m.held[:0]
	if cap(m.held) > maxHeld {
		m.held = nil
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func muxLength(header []byte) uint32 { return binary.BigEndian.Uint32(header[8:]) }

// MuxFrames finds the headers of a multiplexer in the bytes of the other side.
type MuxFrames struct {
	head [MuxHeaderSize]byte
	have int   // bytes of head
	skip int64 // bytes of data that follow
}

// Follow takes the next bytes, and calls seen with each whole header, until an error.
func (f *MuxFrames) Follow(p []byte, seen func(header []byte) error) error {
	for len(p) > 0 {
		if f.skip > 0 {
			n := min(int64(len(p)), f.skip)
			f.skip -= n
			p = p[n:]
			continue
		}
		n := copy(f.head[f.have:], p)
		f.have += n
		p = p[n:]
		if f.have < len(f.head) {
			return nil
		}
		f.have = 0
		if err := seen(f.head[:]); err != nil {
			return err
		}
		if f.head[1] == MuxData {
			f.skip = int64(muxLength(f.head[:]))
		}
	}
	return nil
}
