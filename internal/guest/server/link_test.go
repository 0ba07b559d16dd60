//go:build linux

package server

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestSilentConnEnds: a connection on which no host sends anything ends although nobody closes the stream.
func TestSilentConnEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		next *wire.Marker
		want error
	}{
		"before the preamble": {nil, os.ErrDeadlineExceeded},
		"after it":            {&wire.Marker{Nonce: wire.Nonce{1}, Version: wire.ProtocolVersion}, errSilent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := New(Config{Workdir: t.TempDir(), Version: "test"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() }) // nothing ran
			host, guest := net.Pipe()
			defer host.Close()
			l := s.newLink(guest, true)
			l.own, l.silence, l.next = true, 30*time.Millisecond, c.next
			go io.Copy(io.Discard, host) //nolint:errcheck // ends with the pipe
			if err := l.serve(); !errors.Is(err, c.want) {
				t.Errorf("ended with %v, want %v", err, c.want)
			}
		})
	}
}
