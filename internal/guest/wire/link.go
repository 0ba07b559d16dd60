package wire

import (
	"encoding/binary"
	"errors"
	"io"
)

// SocketName is the address of a guest's socket, in the abstract namespace of its sandbox's network: there is no file
// that a command could remove or replace, and nothing outside of the namespace can reach it.
const SocketName = "@workcell-guest"

// MarkerSize is the size of a preamble and of its acknowledgement.
const MarkerSize = 10

// Magics of the markers.
const (
	FromHost  = "\xF5WCpre\r\n" // preamble
	FromGuest = "\xF5WCack\r\n" // acknowledgement
)

// ErrMarker: a stream does not begin with a marker.
var ErrMarker = errors.New("the stream does not begin as it must")

// AppendMarker appends the bytes that each side sends first: magic (8) and version (2, big-endian). They are the same
// in every version, so that a guest can answer hosts of other versions.
func AppendMarker(dst []byte, magic string, version uint16) []byte {
	return binary.BigEndian.AppendUint16(append(dst, magic...), version)
}

// ReadMarker reads the marker of the other side, and returns its version.
func ReadMarker(r io.Reader, magic string) (version uint16, err error) {
	var b [MarkerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	if string(b[:8]) != magic {
		return 0, ErrMarker
	}
	return binary.BigEndian.Uint16(b[8:]), nil
}
