package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// watched returns a Quota whose scans are too slow for the end of every command. Only the test triggers scans. The
// first scan has been done.
func watched(t *testing.T, dir string, limit Limit, over *layer) *Quota {
	t.Helper()
	root, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	limit.Watched = true
	q := &Quota{limit: limit, dir: dir, layer: over, root: root, stop: func() {}, kick: make(chan struct{}, 1), first: make(chan struct{}), ctx: t.Context()}
	q.floor = usage{limit.Bytes, limit.Files}
	q.look()
	close(q.first)
	slow(q)
	return q
}

// memoryDir returns a directory in memory. Its file system accounts for writes immediately, and no other process holds
// deleted files open there, which would count.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "quota")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// slow makes q record an hour as the time of the last scan.
func slow(q *Quota) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cost = time.Hour
}

// admitted starts a command.
func admitted(t *testing.T, q *Quota) quotaMark {
	t.Helper()
	mark, err := q.admit()
	if err != nil || mark.frozen {
		t.Fatalf("frozen %t, %v", mark.frozen, err)
	}
	return mark
}

// TestQuotaCut verifies that a scan always follows a command unable to continue writing, even if the scan is slow, and
// the command gets the reason.
func TestQuotaCut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	q := watched(t, dir, Limit{Bytes: 1 << 40, Files: 1 << 20}, nil)
	mark := admitted(t, q)
	q.limit.Bytes = 4096
	must(t, os.WriteFile(filepath.Join(dir, "f"), make([]byte, 8192), 0o600))
	if full, _, _ := q.ended(mark, false, false); full {
		t.Error("a look that takes an hour was taken for a command that was not cut")
	}
	if full, _, _ := q.ended(mark, true, false); !full {
		t.Error("a command that was cut was not told that the workspace is full")
	}
}

// TestQuotaBefore verifies that a scan started before a command has no effect on this command.
func TestQuotaBefore(t *testing.T) {
	t.Parallel()
	q := watched(t, t.TempDir(), Limit{Bytes: 1 << 40, Files: 1 << 20}, nil)
	early := admitted(t, q)
	begun := time.Now()
	late := admitted(t, q)
	q.take(usage{bytes: q.limit.Bytes}, usage{}, begun, usage{}, false)
	slow(q)
	if full, _, _ := q.ended(early, false, false); !full {
		t.Error("the command that wrote was not told")
	}
	if full, _, _ := q.ended(late, false, false); full {
		t.Error("the next command got the reason")
	}
}

// TestQuotaDue verifies that no scan runs most of the time, regardless of the duration of a scan.
func TestQuotaDue(t *testing.T) {
	t.Parallel()
	q := watched(t, t.TempDir(), Limit{Bytes: 1 << 40}, nil)
	q.looked = time.Now().Add(-3 * time.Hour)
	if q.free = (usage{}); q.due() {
		t.Error("three hours after a look that took one")
	}
	q.looked = time.Now().Add(-5 * time.Hour)
	if !q.due() {
		t.Error("never")
	}
}

// TestQuotaFirst verifies that a guest agent responds before the first scan of the workspace, and the first command and
// first file wait for the scan.
func TestQuotaFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		write(t, filepath.Join(dir, name))
	}
	looked, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	stop := func() {
		once.Do(func() { close(looked) })
		<-done
	}
	q, err := NewQuota(dir, nil, Limit{Bytes: 1 << 40, Files: 1, Watched: true}, stop, func() bool { return false })
	must(t, err)
	defer q.close()
	<-looked // the scan found too much data and is still running
	frozen, refused := make(chan bool, 1), make(chan error, 1)
	go func() {
		m, err := q.admit()
		frozen <- m.frozen && err == nil
	}()
	go func() {
		_, err := q.Reserve(1, 1)
		refused <- err
	}()
	select {
	case <-frozen:
		t.Error("a command did not wait")
	case <-refused:
		t.Error("a file did not wait")
	default:
	}
	close(done)
	if !<-frozen {
		t.Error("the first command may write")
	}
	if <-refused == nil {
		t.Error("the first file was taken")
	}
}

// TestQuotaUntouched verifies that written data is detected at the end of a command, and the scan is skipped if no data
// was written.
func TestQuotaUntouched(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	q := watched(t, dir, Limit{Bytes: 8192, Files: 100}, nil)
	q.cost = 0 // scans are quick
	mark := admitted(t, q)
	must(t, os.WriteFile(filepath.Join(dir, "f"), make([]byte, 16384), 0o600))
	if q.untouched() {
		t.Error("a file was written")
	}
	if full, stopped, _ := q.ended(mark, false, false); !full || !stopped {
		t.Errorf("full %t, stopped %t", full, stopped)
	}
}

// TestQuotaCuts verifies that the excess is cut from the files grown last, and never below their earlier size.
func TestQuotaCuts(t *testing.T) {
	t.Parallel()
	const k = 1 << 10
	dir := memoryDir(t)
	q := watched(t, dir, Limit{Bytes: 1 << 20}, nil)
	makeDir(t, filepath.Join(dir, "d"))
	grow := func(name string, size int) {
		time.Sleep(20 * time.Millisecond) // so that the changes have different kernel timestamps
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.Write(make([]byte, size))
		}
		err = errors.Join(err, f.Close())
		must(t, err)
	}
	grow("a", 600*k)
	grow("d/b", 100*k)
	q.look()
	for _, c := range []struct{ a, b, wantA, wantB int64 }{
		{0, 900 * k, 600 * k, 456 * k}, // cut to the limit, and 32 KiB remain above it
		{900 * k, 900 * k, 600 * k, 100 * k},
	} {
		mark, err := q.admit()
		must(t, err)
		grow("a", int(c.a))
		grow("d/b", int(c.b))
		if _, stopped, note := q.ended(mark, true, true); !stopped || !strings.Contains(note, `"d/b"`) {
			t.Errorf("stopped %t, %q", stopped, note)
		}
		a, b := size(t, filepath.Join(dir, "a")), size(t, filepath.Join(dir, "d/b"))
		if a < c.wantA || b < c.wantB || a+b > 1100*k {
			t.Errorf("a has %d, b %d KiB", a/k, b/k)
		}
	}
}

func size(t *testing.T, name string) int64 {
	t.Helper()
	info, err := os.Stat(name)
	must(t, err)
	return info.Size()
}
