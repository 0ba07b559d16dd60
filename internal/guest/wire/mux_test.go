package wire_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func header(kind, flags byte, length int) []byte {
	return []byte{0, kind, 0, flags, 0, 0, 0, 1, byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}
}

// writes records the data of each write.
type writes struct {
	calls [][]byte
	err   error
}

func (w *writes) Write(p []byte) (int, error) {
	w.calls = append(w.calls, bytes.Clone(p))
	return len(p), w.err
}

// TestMuxWriter verifies that a header is written together with the body, and other data is not held back.
func TestMuxWriter(t *testing.T) {
	t.Parallel()
	var w writes
	m := wire.NewMuxWriter(&w)
	small, large := bytes.Repeat([]byte("b"), wire.MuxHeaderSize), bytes.Repeat([]byte("0123456789"), 30_000)
	parts := [][]byte{
		header(wire.MuxWindowUpdate, wire.MuxFlagSYN, 0), header(wire.MuxData, 0, len(small)), small,
		header(wire.MuxData, 4, 0), header(wire.MuxData, 0, len(large)), large, header(wire.MuxPing, 1, 7),
	}
	for _, p := range parts {
		if n, err := m.Write(p); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := bytes.Join(w.calls, nil); len(w.calls) != 5 || !bytes.Equal(got, bytes.Join(parts, nil)) {
		t.Errorf("%d writes of %d bytes", len(w.calls), len(got))
	}
	w.err = io.ErrNoProgress
	if _, err := m.Write(parts[0]); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v", err)
	}
}

// FuzzMuxFrames verifies that the same headers are found regardless of how the data is split, and no headers are found
// in a body.
func FuzzMuxFrames(f *testing.F) {
	f.Add(append(header(wire.MuxData, 0, 12), header(wire.MuxGoAway, 0, 0)...), uint8(5))
	f.Add(append(header(wire.MuxPing, 1, 1<<30), header(wire.MuxData, 0, 1<<30)...), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		follow := func(size int) (seen []byte) {
			var frames wire.MuxFrames
			for rest := b; len(rest) > 0; rest = rest[min(size, len(rest)):] {
				_ = frames.Follow(rest[:min(size, len(rest))], func(h []byte) error { seen = append(seen, h...); return nil })
			}
			return seen
		}
		whole, parts := follow(len(b)+1), follow(int(cut)+1)
		if !bytes.Equal(whole, parts) || len(whole)%wire.MuxHeaderSize != 0 {
			t.Fatalf("%x, in parts %x", whole, parts)
		}
	})
}
