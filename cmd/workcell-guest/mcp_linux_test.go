package main

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// TestBridgeReportsABreak verifies that bridge reports an error even if bytes were copied before.
func TestBridgeReportsABreak(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"at once": 0, "later": 1} {
		addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
		l, err := net.ListenUnix("unix", addr)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.DialUnix("unix", nil, addr)
		if err != nil {
			t.Fatal(err)
		}
		host, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		out, in := io.Pipe()
		go func() {
			_, _ = io.CopyN(io.Discard, out, int64(size))
			_ = out.Close() // the reader stops reading
		}()
		_, _ = io.WriteString(host, "answer")
		if err := bridge(conn, strings.NewReader("request"), in); err == nil {
			t.Errorf("%s: no error", name)
		}
		_, _ = host.Close(), l.Close()
	}
}
