package server

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// processors sets how many processors the test's process has, which keeps the test from being parallel.
func processors(t *testing.T, n int) {
	t.Helper()
	before := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

func TestBulk(t *testing.T) {
	processors(t, 3)
	var b bulk
	_, small := b.begin(bulkSize - 1)
	if got := runtime.GOMAXPROCS(0); got != 3 {
		t.Errorf("%d processors beside a small file, want 3", got)
	}
	_, first := b.begin(bulkSize)
	_, second := b.begin(1 << 40)
	small()
	first()
	if got := runtime.GOMAXPROCS(0); got != 1 {
		t.Errorf("%d processors while a large file comes, want 1", got)
	}
	second()
	if got := runtime.GOMAXPROCS(0); got != 3 {
		t.Errorf("%d processors afterwards, want 3", got)
	}
}

// TestBulkStall: a transfer that stands still gives the processors back, once.
func TestBulkStall(t *testing.T) {
	processors(t, 3)
	synctest.Test(t, func(t *testing.T) {
		var b bulk
		moved, end := b.begin(bulkSize)
		for range 3 {
			time.Sleep(bulkStall - 1)
			moved()
		}
		if got := runtime.GOMAXPROCS(0); got != 1 {
			t.Errorf("%d processors while a large file comes, want 1", got)
		}
		time.Sleep(bulkStall)
		synctest.Wait()
		if got := runtime.GOMAXPROCS(0); got != 3 {
			t.Errorf("%d processors while it stands still, want 3", got)
		}
		_, other := b.begin(bulkSize)
		moved()
		end()
		if got := runtime.GOMAXPROCS(0); got != 1 {
			t.Errorf("%d processors while another comes, want 1", got)
		}
		other()
		if got := runtime.GOMAXPROCS(0); got != 3 {
			t.Errorf("%d processors afterwards, want 3", got)
		}
	})
}

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
	processors(t, 3)
	done := make(chan struct{})
	close(done)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("ten bytes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Workdir: dir, Protection: &Protection{done: done}})
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

// hostOf connects to s, and closes both at the test's end.
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
