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

// watched makes a quota whose looks take too long to be taken at every command's end, and that nothing but the test
// makes look: its first one has been.
func watched(t *testing.T, dir string, limit Limit, over *layer) *Quota {
	t.Helper()
	root, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	limit.Watched = true
	q := &Quota{limit: limit, dir: dir, layer: over, root: root, stop: func() {}, kick: make(chan struct{}, 1), first: make(chan struct{})}
	q.floor = usage{limit.Bytes, limit.Files}
	q.look()
	close(q.first)
	slow(q)
	return q
}

// memoryDir is a directory in memory: of a kind that counts at once, and where no other process has deleted files open,
// which count as well.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "quota")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// slow makes q believe that its last look has just taken an hour.
func slow(q *Quota) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cost = time.Hour
}

// admitted begins a command.
func admitted(t *testing.T, q *Quota) quotaMark {
	t.Helper()
	mark, err := q.admit()
	if err != nil || mark.frozen {
		t.Fatalf("frozen %t, %v", mark.frozen, err)
	}
	return mark
}

// TestQuotaCut: a command that could not write on is looked after however long that takes, and told what it was.
func TestQuotaCut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	q := watched(t, dir, Limit{Bytes: 1 << 40, Files: 1 << 20}, nil)
	mark := admitted(t, q)
	q.limit.Bytes = 4096
	must(t, os.WriteFile(filepath.Join(dir, "f"), make([]byte, 8192), 0o600))
	if full, _ := q.ended(mark, false, false); full {
		t.Error("a look that takes an hour was taken for a command that was not cut")
	}
	if full, _ := q.ended(mark, true, false); !full {
		t.Error("a command that was cut was not told that the workspace is full")
	}
}

// TestQuotaBefore: what a look found that began before a command is nothing to that command.
func TestQuotaBefore(t *testing.T) {
	t.Parallel()
	q := watched(t, t.TempDir(), Limit{Bytes: 1 << 40, Files: 1 << 20}, nil)
	early := admitted(t, q)
	begun := time.Now()
	late := admitted(t, q)
	q.take(usage{bytes: q.limit.Bytes}, usage{}, begun, usage{}, false)
	slow(q)
	if full, _ := q.ended(early, false, false); !full {
		t.Error("the command that wrote was not told")
	}
	if full, _ := q.ended(late, false, false); full {
		t.Error("the next one was told")
	}
}

// TestQuotaDue: most of the time no look is under way, however long one takes.
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

// TestQuotaFirst: a guest is there before its workspace was looked at; its first command and its first file wait for
// that.
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
	<-looked // and found too much; the look is not over
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

// TestQuotaUntouched: what a command wrote is found at its end, though a look is spared when nothing was written.
func TestQuotaUntouched(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	q := watched(t, dir, Limit{Bytes: 8192, Files: 100}, nil)
	q.cost = 0 // it is quick
	mark := admitted(t, q)
	must(t, os.WriteFile(filepath.Join(dir, "f"), make([]byte, 16384), 0o600))
	if q.untouched() {
		t.Error("a file was written")
	}
	if full, stopped := q.ended(mark, false, false); !full || !stopped {
		t.Errorf("full %t, stopped %t", full, stopped)
	}
}

// TestQuotaCuts: the excess is cut from the files that grew last, never below their earlier size.
func TestQuotaCuts(t *testing.T) {
	t.Parallel()
	const k = 1 << 10
	dir := memoryDir(t)
	q := watched(t, dir, Limit{Bytes: 1 << 20}, nil)
	makeDir(t, filepath.Join(dir, "d"))
	grow := func(name string, size int) {
		time.Sleep(20 * time.Millisecond) // so that the kernel's clock tells the changes apart
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.Write(make([]byte, size))
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	grow("a", 600*k)
	grow("d/b", 100*k)
	q.look()
	for _, c := range []struct{ a, b, wantA, wantB int64 }{
		{0, 900 * k, 600 * k, 456 * k}, // back to the limit, with 32 KiB more than that
		{900 * k, 900 * k, 600 * k, 100 * k},
	} {
		mark, err := q.admit()
		must(t, err)
		grow("a", int(c.a))
		grow("d/b", int(c.b))
		if _, stopped := q.ended(mark, true, true); !stopped || !strings.Contains(q.shortened(mark), `"d/b"`) {
			t.Errorf("stopped %t, %q", stopped, q.shortened(mark))
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
