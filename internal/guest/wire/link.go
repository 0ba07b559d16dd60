package wire

import (
	"encoding/binary"
	"errors"
	"io"
)

// SocketName is the address of a guest agent's socket, in the abstract namespace of the sandbox's network. A command
// cannot remove or replace it like a file, and processes outside of the namespace cannot reach it.
const SocketName = "@workcell-guest"

// MarkerSize is the size of a preamble and of an acknowledgment.
const MarkerSize = 10

// Magic bytes of the markers.
const (
	FromHost  = "\xF5WCpre\r\n" // preamble
	FromGuest = "\xF5WCack\r\n" // acknowledgment
)

// ErrMarker is the error for a stream without a marker at the beginning.
var ErrMarker = errors.New("the stream does not begin as it must")

// AppendMarker appends the first bytes sent by each side: magic bytes (8) and version (2, big-endian). This format is
// the same in every version, to allow answers to hosts with other versions.
func AppendMarker(dst []byte, magic string, version uint16) []byte {
	return binary.BigEndian.AppendUint16(append(dst, magic...), version)
}

// ReadMarker reads the marker of the other side and returns the version.
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
