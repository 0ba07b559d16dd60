package files

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestListStopsCounting verifies that a directory is not read completely if it has more names than the total can
// report.
func TestListStopsCounting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 6000 {
		must(t, os.Symlink("x", filepath.Join(dir, fmt.Sprint(i))))
	}
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	l := &lister{limit: 1, buf: make([]byte, 1<<13), total: wire.MaxListTotal - 100}
	must(t, l.list(int(f.Fd()), "", 0))
	if l.total > wire.MaxListTotal+4000 || !l.truncated {
		t.Errorf("total %d, truncated %v", l.total, l.truncated)
	}
}
