package files

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
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
