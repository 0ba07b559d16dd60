package wire

import (
	"encoding/binary"
	"io"
)

// Parts of the multiplexer's header for MuxWriter and MuxFrames.
const (
	MuxHeaderSize   = 12
	MuxData         = 0 // type of a data frame
	MuxWindowUpdate = 1 // type of a window grant; the flags open or close a stream
	MuxPing         = 2
	MuxGoAway       = 3 // goodbye of a host
	MuxFlagSYN      = 1
)

// maxHeld is the maximum number of bytes held back by a MuxWriter for the next frame.
const maxHeld = 128 << 10

// MuxWriter writes whole frames of a multiplexer. The multiplexer writes a header and the body separately, and each
// write would wake up every process on the path. It is not safe for concurrent use.
type MuxWriter struct {
	w    io.Writer
	held []byte
}

// NewMuxWriter returns a MuxWriter for writing frames to w.
func NewMuxWriter(w io.Writer) *MuxWriter { return &MuxWriter{w: w} }

// Write accepts the header or body of a frame.
func (m *MuxWriter) Write(p []byte) (int, error) {
	header := len(m.held) == 0 && len(p) == MuxHeaderSize
	m.held = append(m.held, p...)
	if header && p[1] == MuxData && muxLength(p) > 0 {
		return len(p), nil // the body comes next
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

// MuxFrames finds the headers of a multiplexer in the data of the other side.
type MuxFrames struct {
	head [MuxHeaderSize]byte
	have int   // number of bytes in head
	skip int64 // remaining bytes of the frame's data
}

// Follow processes the next bytes and calls seen with each complete header. It stops at the first error.
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
