package disk

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLayerOverNothing verifies that, without an overlay, the files of the first scan do not count, regardless of their
// size.
func TestLayerOverNothing(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	image := filepath.Join(dir, "image")
	makeDir(t, image)
	for _, name := range []string{"a", "b", "c"} {
		must(t, os.WriteFile(filepath.Join(image, name), make([]byte, 1<<20), 0o600))
	}
	q := watched(t, dir, Limit{Bytes: 1 << 20, Files: 4}, NewLayer("/proc", "/workspace")) // /proc is never an overlay
	if q.found.bytes != 0 || q.found.files != 0 {
		t.Errorf("found %+v at first", q.found)
	}
	for _, name := range []string{"d", "e"} {
		must(t, os.WriteFile(filepath.Join(image, name), make([]byte, 768<<10), 0o600))
	}
	if q.look(); q.found.files != 2 || !q.passed(q.limit) || q.stops != 1 {
		t.Errorf("found %+v, %d stops", q.found, q.stops)
	}
	if m, err := q.admit(); err != nil || !m.frozen {
		t.Errorf("admitted %+v, %v", m, err)
	}
	must(t, os.RemoveAll(image))
	if m, err := q.admit(); err != nil || m.frozen || q.found != (usage{}) {
		t.Errorf("after everything was deleted: %+v, %v, found %+v", m, err, q.found)
	}
}

// TestLayerChecked verifies that no commands start if a layer is far over the limit, and the cost of a scan depends on
// the amount of written data.
func TestLayerChecked(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	q := watched(t, dir, Limit{Bytes: 1 << 20, Files: 4}, &layer{since: time.Now().Add(-time.Hour).UnixNano()})
	many := filepath.Join(dir, "many")
	makeDir(t, many)
	must(t, unix.Fallocate(create(t, filepath.Join(many, "f")), 0, 0, 2<<20+quotaSlackBytes+Block))
	if m, err := q.admit(); err != nil {
		t.Fatalf("admitted %+v, %v", m, err)
	}
	q.look()
	if _, err := q.admit(); err == nil {
		t.Errorf("a command was admitted: %+v", q.found)
	}
}

func create(t *testing.T, name string) int {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}
