package wire

import (
	"encoding/binary"
	"errors"
	"io"
)

// Magic bytes of the markers.
const (
	FromHost  = "\xF5WCpre\r\n" // preamble
	FromGuest = "\xF5WCack\r\n" // acknowledgment
)

// Sizes of the magic bytes, and of a whole preamble or acknowledgment.
const magicSize, markerSize = len(FromHost), len(FromHost) + 2

// ErrMarker is the error for a stream without a marker at the beginning.
var ErrMarker = errors.New("no Workcell marker at the start of the stream")

// AppendMarker appends the first bytes sent by each side: magic bytes (8) and version (2, big-endian). This format is
// the same in every version, to allow answers to hosts with other versions.
func AppendMarker(dst []byte, magic string, version uint16) []byte {
	return binary.BigEndian.AppendUint16(append(dst, magic...), version)
}

// ReadMarker reads the marker of the other side and returns the version.
func ReadMarker(r io.Reader, magic string) (version uint16, err error) {
	var b [markerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	if string(b[:magicSize]) != magic {
		return 0, ErrMarker
	}
	return binary.BigEndian.Uint16(b[magicSize:]), nil
}
