package files

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/disk"
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

// host is a request that notes the least processors that there were while something was sent.
type host struct {
	Request
	procs int
}

func (h *host) Write(p []byte) (int, error) {
	h.procs = min(h.procs, runtime.GOMAXPROCS(0))
	return len(p), nil
}

// TestBulkRead: what counts is what a file holds, not what the host would take.
func TestBulkRead(t *testing.T) {
	processors(t, 3)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("ten bytes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir, make(disk.Gate, 1), true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, req := range []wire.FileGetRequest{{Path: "f", Length: 1 << 40}, {Path: "f", Offset: 1 << 40, Length: 1 << 40}, {Path: "f", Length: -1}} {
		h := &host{procs: 3}
		if err := s.Get(h, &req); err != nil || h.procs != 3 {
			t.Errorf("%+v: %d processors, want 3; %v", req, h.procs, err)
		}
	}
}
