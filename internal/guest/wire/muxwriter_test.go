package wire_test

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// writes collects what is written, call by call.
type writes struct {
	mu    sync.Mutex
	calls [][]byte
	err   error
}

func (w *writes) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, bytes.Clone(p))
	return len(p), w.err
}

func (w *writes) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.calls)
}

// bodies reads the calls' chunks back and joins their bodies.
func (w *writes) bodies(t *testing.T, n wire.Nonce) []byte {
	t.Helper()
	stream := append(marker(wire.FromHost, n), bytes.Join(w.calls, nil)...)
	r := wire.NewLinkReader(bytes.NewReader(stream), wire.FromHost)
	var all []byte
	for {
		item, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil || item.Generation != n.Generation() {
			t.Fatalf("%+v, %v", item, err)
		}
		all = append(all, item.Body...)
	}
}

func header(kind byte, flags byte, length int) []byte {
	return []byte{0, kind, 0, flags, 0, 0, 0, 1, byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}
}

func TestMuxWriterJoinsWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, joinsWrites) // a machine may take longer from one write to the next than they are held back
}

func joinsWrites(t *testing.T) {
	n := nonce(3)
	var w writes
	m := wire.NewMuxWriter(&w, n.Generation())
	body := bytes.Repeat([]byte("b"), 100)
	for _, p := range [][]byte{header(wire.MuxWindowUpdate, wire.MuxFlagSYN, 0), header(wire.MuxData, 0, len(body)), body} {
		if _, err := m.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if w.count() != 1 {
		t.Errorf("%d writes instead of one", w.count())
	}
	// A frame that opens or closes a stream goes out by itself when nothing follows, and soon.
	if _, err := m.Write(header(wire.MuxWindowUpdate, 4, 0)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	synctest.Wait()
	// One that gives window goes out at once.
	if _, err := m.Write(header(wire.MuxWindowUpdate, 0, 1000)); err != nil || w.count() != 3 {
		t.Errorf("%d writes, %v", w.count(), err)
	}
	want := bytes.Join([][]byte{header(wire.MuxWindowUpdate, 1, 0), header(wire.MuxData, 0, 100), body, header(wire.MuxWindowUpdate, 4, 0), header(wire.MuxWindowUpdate, 0, 1000)}, nil)
	if got := w.bodies(t, n); !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
}

func TestMuxWriterSplitsLargeBodies(t *testing.T) {
	t.Parallel()
	n := nonce(3)
	var w writes
	m := wire.NewMuxWriter(&w, n.Generation())
	body := bytes.Repeat([]byte("0123456789"), 30_000)
	for _, p := range [][]byte{header(wire.MuxData, 0, len(body)), body} {
		if _, err := m.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.bodies(t, n); !bytes.Equal(got[wire.MuxHeaderSize:], body) || w.count() != 5 {
		t.Errorf("%d bytes in %d writes", len(got), w.count())
	}
}

func TestMuxWriterEnd(t *testing.T) {
	t.Parallel()
	var w writes
	m := wire.NewMuxWriter(&w, 1)
	m.Bye()
	if _, err := m.Write(header(wire.MuxPing, 1, 0)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("after Bye: %v", err)
	}
	if w.count() != 1 || len(w.calls[0]) != wire.ChunkHeaderSize {
		t.Errorf("Bye wrote %d chunks", w.count())
	}
	broken := writes{err: io.ErrNoProgress}
	m = wire.NewMuxWriter(&broken, 1)
	for range 2 {
		if _, err := m.Write(header(wire.MuxPing, 1, 0)); !errors.Is(err, io.ErrNoProgress) {
			t.Errorf("got %v", err)
		}
	}
	if broken.count() != 1 {
		t.Error("wrote on after a failure")
	}
}
