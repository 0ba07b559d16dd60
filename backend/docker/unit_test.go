package docker_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
)

func frame(kind byte, data string) []byte {
	b := []byte{kind, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func TestStreamDemultiplexes(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789", 20_000)
	in := bytes.Join([][]byte{frame(1, "one "), frame(2, "not this"), frame(1, ""), frame(3, "nor this"), frame(1, long), frame(2, ""), frame(1, " end")}, nil)
	got, err := io.ReadAll(feed(t, in))
	if want := "one " + long + " end"; err != nil || string(got) != want {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(want))
	}
	for name, bad := range map[string][]byte{
		"kind": {9, 0, 0, 0, 0, 0, 0, 1, 'x'}, "padding": {1, 1, 0, 0, 0, 0, 0, 1, 'x'}, "size": {1, 0, 0, 0, 0xff, 0, 0, 0, 'x'},
	} {
		if _, err := io.ReadAll(feed(t, bad)); !errors.Is(err, backend.ErrProtocol) {
			t.Errorf("%s: %v, want ErrProtocol", name, err)
		}
	}
	for name, bad := range map[string][]byte{"head": {1, 0, 0}, "body": frame(1, "12345")[:10]} {
		if _, err := io.ReadAll(feed(t, bad)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut %s: %v, want unexpected EOF", name, err)
		}
	}
}

// feed returns a stream over a connection that carries in and then ends.
func feed(t *testing.T, in []byte) io.Reader {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		_, _ = far.Write(in) // fails when the reader gives up early
		_ = far.Close()
	}()
	t.Cleanup(func() { _ = near.Close() })
	return docker.NewStream(near)
}

func FuzzStream(f *testing.F) {
	f.Add(frame(1, "hello"))
	f.Add(append(frame(2, "x"), frame(1, "y")...))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, _ := io.ReadAll(feed(t, in)) // any error is fine, a panic or a hang is not
		if len(got) > len(in) {
			t.Fatalf("%d bytes out of %d", len(got), len(in))
		}
	})
}
