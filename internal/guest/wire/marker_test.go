package wire_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// FuzzMarker verifies that a marker is read back as written, even byte by byte, and other bytes are rejected.
func FuzzMarker(f *testing.F) {
	f.Add(uint16(1), uint16(0), []byte("behind"))
	f.Add(uint16(65535), uint16(300), []byte{})
	f.Fuzz(func(t *testing.T, version, flip uint16, rest []byte) {
		b := wire.AppendMarker(nil, wire.FromGuest, version)
		r := iotest.OneByteReader(bytes.NewReader(append(bytes.Clone(b), rest...)))
		if got, err := wire.ReadMarker(r, wire.FromGuest); err != nil || got != version {
			t.Fatalf("read back %d, %v", got, err)
		}
		if behind, err := io.ReadAll(r); err != nil || !bytes.Equal(behind, rest) {
			t.Fatalf("%q is left of %q, %v", behind, rest, err)
		}
		if _, err := wire.ReadMarker(bytes.NewReader(b), wire.FromHost); !errors.Is(err, wire.ErrMarker) {
			t.Fatalf("the other side's: %v", err)
		}
		bit := int(flip) % 64 // in the magic bytes
		b[bit/8] ^= 1 << (bit % 8)
		if got, err := wire.ReadMarker(bytes.NewReader(b), wire.FromGuest); !errors.Is(err, wire.ErrMarker) {
			t.Fatalf("with bit %d flipped it is still a marker: %d, %v", bit, got, err)
		}
		if _, err := wire.ReadMarker(bytes.NewReader(b[:int(flip)%len(b)]), wire.FromGuest); err == nil || errors.Is(err, wire.ErrMarker) {
			t.Fatalf("half a marker: %v", err)
		}
	})
}
