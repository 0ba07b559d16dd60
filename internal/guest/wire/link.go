package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// SocketName is the address of a guest's socket, in the abstract namespace of its sandbox's network: there is no file that a
// command could remove or replace, and nothing outside of the namespace can reach it.
const SocketName = "@workcell-guest"

// MarkerSize is the size of a preamble and of its acknowledgement.
const MarkerSize = 32

// Magics of the markers.
const (
	FromHost  = "\xF5WCpre\r\n" // preamble
	FromGuest = "\xF5WCack\r\n" // acknowledgement
)

// ErrMarker: a stream does not begin with a marker.
var ErrMarker = errors.New("the stream does not begin as it must")

// AppendMarker appends the 32 bytes that each side sends first: magic (8), zero (16), version (2), zero (2), CRC-32C of
// all that (4); integers are big-endian. Older versions have the same markers, so that their guests answer with their
// version.
func AppendMarker(dst []byte, magic string, version uint16) []byte {
	start := len(dst)
	dst = append(append(dst, magic...), make([]byte, 16)...)
	dst = binary.BigEndian.AppendUint16(dst, version)
	dst = append(dst, 0, 0)
	// The table is made here, because the launcher of a sandbox, for example, never needs it.
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], crc32.MakeTable(crc32.Castagnoli)))
}

// ReadMarker reads the marker of the other side, and returns its version.
func ReadMarker(r io.Reader, magic string) (version uint16, err error) {
	var b [MarkerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	version = binary.BigEndian.Uint16(b[24:])
	if !bytes.Equal(b[:], AppendMarker(nil, magic, version)) {
		return 0, ErrMarker
	}
	return version, nil
}
