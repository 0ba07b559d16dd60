package server

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// fewest notes the least processors that there were when something was written to it.
type fewest struct {
	bytes.Buffer
	procs int
}

func (f *fewest) Write(p []byte) (int, error) {
	f.procs = min(f.procs, runtime.GOMAXPROCS(0))
	return f.Buffer.Write(p)
}

// TestBulkRead: what counts is what a file holds, not what the host would take.
func TestBulkRead(t *testing.T) {
	before := runtime.GOMAXPROCS(3)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("ten bytes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Workdir: dir, Protection: new(proc.Protection)})
	if err != nil {
		t.Fatal(err)
	}
	c := hostOf(t, s)
	for _, req := range []wire.FileGetRequest{{Path: "f", Length: 1 << 40}, {Path: "f", Offset: 1 << 40, Length: 1 << 40}, {Path: "f", Length: -1}} {
		for range 100 {
			got := fewest{procs: 3}
			if _, err := c.GetFile(t.Context(), req, &got); err != nil {
				t.Fatal(err)
			}
			if got.procs != 3 {
				t.Fatalf("%+v: %d processors while %d bytes go, want 3", req, got.procs, got.Len())
			}
		}
	}
}

// hostOf returns a host of s, and closes both at the test's end.
func hostOf(t *testing.T, s *Server) *client.Conn {
	t.Helper()
	host, guest := net.Pipe()
	var served sync.WaitGroup
	served.Go(func() { _ = s.ServeConn(guest) })
	c, err := client.New(t.Context(), host, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = host.Close()
		served.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
