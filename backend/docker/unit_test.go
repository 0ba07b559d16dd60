package docker_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

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
	in := bytes.Join([][]byte{frame(1, "one "), frame(2, "not this"), frame(1, ""), frame(1, long), frame(1, " end")}, nil)
	got, err := io.ReadAll(feed(t, in))
	if want := "one " + long + " end"; err != nil || string(got) != want {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(want))
	}
	if _, err := io.ReadAll(feed(t, []byte{9, 0, 0, 0, 0, 0, 0, 1, 'x'})); err == nil {
		t.Error("a malformed frame went unnoticed")
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
