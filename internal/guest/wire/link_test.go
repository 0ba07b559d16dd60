package wire_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func nonce(b byte) wire.Nonce {
	var n wire.Nonce
	for i := range n {
		n[i] = b + byte(i)
	}
	return n
}

func marker(d wire.Direction, n wire.Nonce) []byte {
	return wire.AppendMarker(nil, d, wire.Marker{Nonce: n, Version: wire.ProtocolVersion})
}

func chunk(t testing.TB, generation uint32, body []byte) []byte {
	t.Helper()
	b, err := wire.AppendChunk(nil, generation, body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// found is what a reader gave: bodies by generation, "!" for a lost place, "<nonce byte>" for a marker.
func found(r *wire.LinkReader) (items []string, last error) {
	for {
		item, err := r.Next()
		switch {
		case errors.Is(err, wire.ErrLostSync):
			items = append(items, "lost")
		case err != nil:
			return items, err
		case item.Marker != nil:
			items = append(items, "marker "+string('a'+item.Marker.Nonce[0]))
		default:
			items = append(items, "chunk "+string(item.Body))
		}
	}
}

func TestLinkReader(t *testing.T) {
	t.Parallel()
	n, m := nonce(0), nonce(1)
	gen := n.Generation()
	whole := chunk(t, gen, []byte("hello"))
	badHeader := bytes.Clone(whole)
	badHeader[9] ^= 1
	badBody := bytes.Clone(whole)
	badBody[len(badBody)-1] ^= 1
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	pre := marker(wire.FromHost, n)
	for name, tc := range map[string]struct {
		in   []byte
		want []string
	}{
		"nothing":                  {nil, nil},
		"marker":                   {pre, []string{"marker a"}},
		"chunk before a marker":    {join(whole, pre, whole), []string{"marker a", "chunk hello"}},
		"chunks":                   {join(pre, whole, whole), []string{"marker a", "chunk hello", "chunk hello"}},
		"end of a generation":      {join(pre, chunk(t, gen, nil)), []string{"marker a", "chunk "}},
		"next host":                {join(pre, whole, marker(wire.FromHost, m), whole), []string{"marker a", "chunk hello", "marker b", "chunk hello"}},
		"marker in a body":         {join(pre, chunk(t, gen, marker(wire.FromHost, m)), whole), []string{"marker a", "chunk " + string(marker(wire.FromHost, m)), "chunk hello"}},
		"bad header":               {join(pre, badHeader, pre, whole), []string{"marker a", "lost", "marker a", "chunk hello"}},
		"bad body":                 {join(pre, badBody, whole, pre, whole), []string{"marker a", "lost", "marker a", "chunk hello"}},
		"marker of the other side": {join(pre, marker(wire.FromGuest, m), pre), []string{"marker a", "lost", "marker a"}},
		"broken marker":            {join(pre[:31], pre, whole), []string{"marker a", "chunk hello"}},
		"many broken markers":      {join(pre[:9], pre[:17], pre[:31], pre[:1], pre, whole), []string{"marker a", "chunk hello"}},
		"cut and flushed":          {join(pre, whole[:22], make([]byte, wire.FlushSize), marker(wire.FromHost, m), whole), []string{"marker a", "lost", "marker b", "chunk hello"}},
		"cut header and flushed":   {join(pre, whole[:7], make([]byte, wire.FlushSize), marker(wire.FromHost, m), whole), []string{"marker a", "lost", "marker b", "chunk hello"}},
		"noise":                    {join(bytes.Repeat([]byte{0xF5}, 5000), pre, whole), []string{"marker a", "chunk hello"}},
	} {
		for how, r := range map[string]io.Reader{"whole": bytes.NewReader(tc.in), "bytes": iotest.OneByteReader(bytes.NewReader(tc.in))} {
			got, err := found(wire.NewLinkReader(r, wire.FromHost))
			if diff := cmp.Diff(tc.want, got); diff != "" || !errors.Is(err, io.EOF) {
				t.Errorf("%s, %s: %v (-want +got):\n%s", name, how, err, diff)
			}
		}
	}
}

// The largest chunk, cut anywhere, is flushed out by the padding, and its contents are never taken for a marker.
func TestFlushPadding(t *testing.T) {
	t.Parallel()
	n, m := nonce(0), nonce(1)
	evil := bytes.Repeat(marker(wire.FromHost, nonce(2)), wire.MaxChunk/wire.MarkerSize)
	whole := chunk(t, n.Generation(), evil)
	for cut := 0; cut <= len(whole); cut += 61 {
		in := bytes.Join([][]byte{marker(wire.FromHost, n), whole[:cut], make([]byte, wire.FlushSize), marker(wire.FromHost, m)}, nil)
		got, err := found(wire.NewLinkReader(bytes.NewReader(in), wire.FromHost))
		if !errors.Is(err, io.EOF) || len(got) < 2 || got[0] != "marker a" || got[len(got)-1] != "marker b" {
			t.Fatalf("cut after %d bytes: %d items, %v", cut, len(got), err)
		}
		for _, item := range got {
			if item == "marker c" {
				t.Fatalf("cut after %d bytes: contents were taken for a marker", cut)
			}
		}
	}
}

func TestAwait(t *testing.T) {
	t.Parallel()
	n, other := nonce(0), nonce(1)
	fake := bytes.Join([][]byte{marker(wire.FromGuest, other), chunk(t, other.Generation(), make([]byte, 60000))}, nil)
	in := bytes.Join([][]byte{make([]byte, 100), fake, fake[:40000], marker(wire.FromGuest, n), chunk(t, n.Generation(), []byte("mine"))}, nil)
	r := wire.NewLinkReader(bytes.NewReader(in), wire.FromGuest)
	r.Await(n)
	got, err := found(r)
	if diff := cmp.Diff([]string{"marker a", "chunk mine"}, got); diff != "" || !errors.Is(err, io.EOF) {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// A marker or a chunk is given when its last byte has come, not later.
func TestNothingIsHeldBack(t *testing.T) {
	t.Parallel()
	n := nonce(0)
	pr, pw := io.Pipe()
	r := wire.NewLinkReader(pr, wire.FromHost)
	for _, b := range [][]byte{marker(wire.FromHost, n), chunk(t, 1, []byte("x")), marker(wire.FromHost, n), chunk(t, 1, nil)} {
		go func() {
			_, _ = pw.Write(append(make([]byte, 0, len(b)), b[:len(b)/2]...))
			_, _ = pw.Write(b[len(b)/2:])
		}()
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
}

// An error of the stream, such as a deadline, loses nothing.
func TestRetryAfterAnError(t *testing.T) {
	t.Parallel()
	n := nonce(0)
	in := bytes.Join([][]byte{{1, 2, 3}, marker(wire.FromHost, n), chunk(t, 1, []byte("one")), chunk(t, 1, []byte("two"))}, nil)
	r := wire.NewLinkReader(&flaky{r: bytes.NewReader(in)}, wire.FromHost)
	var got []string
	for {
		items, err := found(r)
		got = append(got, items...)
		if errors.Is(err, io.EOF) {
			break
		}
		if !errors.Is(err, errFlaky) {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"marker a", "chunk one", "chunk two"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

var errFlaky = errors.New("flaky")

type flaky struct {
	r    io.Reader
	odds bool
}

func (f *flaky) Read(p []byte) (int, error) {
	if f.odds = !f.odds; f.odds {
		return 0, errFlaky
	}
	return f.r.Read(p[:min(len(p), 3)])
}

func TestChunkSize(t *testing.T) {
	t.Parallel()
	if _, err := wire.AppendChunk(nil, 1, make([]byte, wire.MaxChunk+1)); !errors.Is(err, wire.ErrChunkSize) {
		t.Errorf("got %v", err)
	}
}

// FuzzChunkReader feeds a reader anything: it must not fail otherwise than documented, and what follows a marker that
// was made for this must be found.
func FuzzChunkReader(f *testing.F) {
	n := nonce(0)
	f.Add([]byte{}, []byte("body"), uint32(7))
	f.Add(marker(wire.FromHost, n), []byte{}, uint32(0))
	f.Add(append(marker(wire.FromHost, n), chunk(f, n.Generation(), []byte("hello"))...), []byte("x"), uint32(1))
	f.Add(append(marker(wire.FromHost, n), 0xF5, 'W', 'C', 'h'), make([]byte, 1000), uint32(1<<31))
	f.Add(bytes.Repeat([]byte{0xF5, 'W', 'C', 'p'}, 100), []byte("y"), uint32(2))
	f.Fuzz(func(t *testing.T, junk, body []byte, generation uint32) {
		if len(body) > wire.MaxChunk {
			return
		}
		tail := bytes.Join([][]byte{make([]byte, wire.FlushSize), marker(wire.FromHost, n), chunk(t, generation, body)}, nil)
		for _, in := range [][]byte{junk, append(bytes.Clone(junk), tail...)} {
			r := wire.NewLinkReader(bytes.NewReader(in), wire.FromHost)
			var last wire.Item
			for range len(in) + 2 {
				item, err := r.Next()
				if errors.Is(err, wire.ErrLostSync) {
					continue
				}
				if err != nil {
					if !errors.Is(err, io.EOF) {
						t.Fatalf("unexpected error %v", err)
					}
					break
				}
				if len(item.Body) > wire.MaxChunk {
					t.Fatalf("a body of %d bytes", len(item.Body))
				}
				last = wire.Item{Marker: item.Marker, Generation: item.Generation, Body: bytes.Clone(item.Body)}
			}
			// Junk may hold valid chunk headers that swallow the padding only as far as one chunk goes.
			if len(in) > len(junk) && (last.Marker != nil || last.Generation != generation || !bytes.Equal(last.Body, body)) {
				t.Fatalf("lost the last chunk: %+v", last)
			}
		}
	})
}

// FuzzPreamble: a marker is read back as it was written, and no other bytes are one.
func FuzzPreamble(f *testing.F) {
	f.Add(make([]byte, 16), uint16(1), uint16(0))
	f.Add([]byte("0123456789abcdef"), uint16(65535), uint16(300))
	f.Fuzz(func(t *testing.T, raw []byte, version, flip uint16) {
		var n wire.Nonce
		copy(n[:], raw)
		b := wire.AppendMarker(nil, wire.FromHost, wire.Marker{Nonce: n, Version: version})
		item, err := wire.NewLinkReader(bytes.NewReader(b), wire.FromHost).Next()
		if err != nil || item.Marker == nil || *item.Marker != (wire.Marker{Nonce: n, Version: version}) || item.Generation != n.Generation() {
			t.Fatalf("read back %+v, %v", item, err)
		}
		bit := int(flip) % (8 * len(b))
		b[bit/8] ^= 1 << (bit % 8)
		if item, err := wire.NewLinkReader(bytes.NewReader(b), wire.FromHost).Next(); err == nil {
			t.Fatalf("with bit %d flipped it is still a marker: %+v", bit, item)
		}
	})
}
