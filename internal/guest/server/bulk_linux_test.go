package server

import (
	"runtime"
	"testing"
)

// It sets the number of the test process's processors, so it is not parallel.
func TestBulk(t *testing.T) {
	before := runtime.GOMAXPROCS(3)
	defer runtime.GOMAXPROCS(before)
	var b bulk
	small := b.begin(bulkSize - 1)
	if got := runtime.GOMAXPROCS(0); got != 3 {
		t.Errorf("%d processors beside a small file, want 3", got)
	}
	first, second := b.begin(bulkSize), b.begin(1<<40)
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
