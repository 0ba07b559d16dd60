package pool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// works is a source that creates numbers.
type works struct {
	takes time.Duration // time to create a number

	sync.Mutex // guards the fields below; synctest.Wait does not order later accesses
	fails      error
	made       []time.Time
	last       int
	dropped    []int
	unfit      []int
	free       func() bool // reports whether the pool is unlocked during a check; may be nil
}

func (w *works) Make(ctx context.Context, _ string) (int, error) {
	w.Lock()
	w.made = append(w.made, time.Now())
	w.Unlock()
	select {
	case <-time.After(w.takes):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	w.Lock()
	defer w.Unlock()
	if w.fails != nil {
		return 0, w.fails
	}
	w.last++
	return w.last, nil
}

func (w *works) Usable(context.Context, string) func(int) bool {
	w.Lock()
	defer w.Unlock()
	return func(n int) bool { return (w.free == nil || w.free()) && !slices.Contains(w.unfit, n) }
}

func (w *works) Drop(_ context.Context, n int) {
	w.Lock()
	defer w.Unlock()
	w.dropped = append(w.dropped, n)
}

// record returns the creation times and the dropped numbers.
func (w *works) record() (made []time.Time, dropped []int) {
	w.Lock()
	defer w.Unlock()
	return slices.Clone(w.made), slices.Clone(w.dropped)
}

// start starts a pool with the specified size. end stops the pool and returns the remaining numbers.
func start(t *testing.T, w *works, size int, idle time.Duration) (p *Pool[string, int], end func() []int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p = New(w, []Kind[string]{{Of: "a", Size: size, Idle: idle}})
	left := make(chan []int, 1)
	go func() { left <- p.Run(ctx) }()
	return p, func() []int {
		cancel()
		return <-left
	}
}

// take takes a number and verifies whether one is available.
func take(t *testing.T, p *Pool[string, int], want bool) int {
	t.Helper()
	n, ok := p.Take("a")
	if ok != want {
		t.Fatalf("Take = %d, %v, want %v", n, ok, want)
	}
	return n
}

// TestFill verifies that the pool creates one number at a time, with pauses. It replaces taken numbers, but not while
// callers are still taking.
func TestFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &works{takes: 20 * time.Second}
		_, stop := start(t, slow, 3, -1)
		w := &works{takes: time.Second}
		p, end := start(t, w, 3, -1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if made, _ := w.record(); len(made) != 3 || made[1].Sub(made[0]) != (1+restFactor)*time.Second {
			t.Errorf("made at %v", made)
		}
		time.Sleep(10*time.Second + maxRest)
		if left := stop(); len(left) != 3 {
			t.Errorf("slow: %d in time", len(left))
		}
		for range 3 {
			take(t, p, true)
			time.Sleep(quiet / 2)
		}
		last := time.Now()
		take(t, p, false)
		time.Sleep(time.Second / 2)
		synctest.Wait()
		if made, _ := w.record(); len(made) != 4 || made[3].Sub(last) != quiet {
			t.Errorf("made %d, the next one %v after the last was taken", len(made), made[len(made)-1].Sub(last))
		}
		time.Sleep(time.Minute)
		if left := end(); len(left) != 3 {
			t.Errorf("%v are left", left)
		}
		if _, ok := p.Take("a"); ok {
			t.Error("there is something in a pool that has ended")
		}
	})
}

// TestBusy verifies that the pool is filled even if callers take numbers all the time.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &works{}
		p, end := start(t, w, 1, -1)
		synctest.Wait()
		take(t, p, true)
		for began := time.Now(); time.Since(began) < maxQuiet+quiet; time.Sleep(quiet / 4) {
			p.Take("a")
		}
		synctest.Wait()
		if made, _ := w.record(); len(made) < 2 {
			t.Error("nothing more was made")
		}
		end()
	})
}

// TestFailures verifies that failed creations are retried with increasing pauses.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, slow := &works{fails: errors.New("no engine")}, &works{fails: errors.New("no"), takes: 5 * time.Minute}
		_, end := start(t, w, 1, -1)
		_, stop := start(t, slow, 1, -1)
		time.Sleep(time.Hour)
		synctest.Wait()
		stop()
		if made, _ := slow.record(); len(made) > 7 {
			t.Errorf("slow: tried %d times in an hour", len(made))
		}
		if made, _ := w.record(); len(made) < 50 || len(made) > 70 {
			t.Errorf("tried %d times in an hour", len(made))
		}
		w.Lock()
		w.fails = nil
		w.Unlock()
		time.Sleep(longestPause)
		if left := end(); len(left) != 1 {
			t.Errorf("%v are left", left)
		}
	})
}

// TestIdle verifies that a kind without demand is dropped and that it is created again after a Take.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &works{}
		p, end := start(t, w, 2, time.Hour)
		time.Sleep(time.Hour + 2*checkEvery)
		synctest.Wait()
		if made, dropped := w.record(); len(made) != 2 || len(dropped) != 2 {
			t.Errorf("%d made, %v dropped", len(made), dropped)
		}
		take(t, p, false)
		time.Sleep(time.Second)
		take(t, p, true)
		end()
	})
}

// TestReview verifies that unusable numbers are dropped and replaced. A check may take long, so it must not block Take.
func TestReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &works{}
		p, end := start(t, w, 2, -1)
		w.free = func() bool {
			free := p.mu.TryLock()
			if free {
				p.mu.Unlock()
			}
			return free
		}
		time.Sleep(time.Second)
		w.Lock()
		w.unfit = []int{1}
		w.Unlock()
		time.Sleep(2 * checkEvery)
		if left := end(); !slices.Equal(w.dropped, []int{1}) || !slices.Equal(left, []int{2, 3}) {
			t.Errorf("dropped %v, left %v", w.dropped, left)
		}
	})
}
