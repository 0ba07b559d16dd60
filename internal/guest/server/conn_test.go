//go:build linux

package server

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestSilentConnEnds verifies that a connection ends if the host sends no data, even if the stream stays open.
func TestSilentConnEnds(t *testing.T) {
	t.Parallel()
	for name, said := range map[string][]byte{
		"before the preamble": nil,
		"within it":           wire.AppendMarker(nil, wire.FromHost, wire.ProtocolVersion)[:7],
		"after it":            wire.AppendMarker(nil, wire.FromHost, wire.ProtocolVersion),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := New(Config{Workdir: t.TempDir(), Version: "test"})
			checktest.Must(t, err)
			t.Cleanup(func() { _ = s.Close() }) // no command was running
			host, guest := net.Pipe()
			defer host.Close()
			c := s.newConn(guest)
			c.silence = 30 * time.Millisecond
			go io.Copy(io.Discard, host) //nolint:errcheck // ends with the pipe
			go host.Write(said)          //nolint:errcheck // as above
			if err := c.serve(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("ended with %v, want ErrDeadlineExceeded", err)
			}
		})
	}
}
