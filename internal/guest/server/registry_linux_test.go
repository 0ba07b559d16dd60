package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestGetAwaitsStart verifies that get waits for a starting command, because a host may repeat a request.
func TestGetAwaitsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry()
		starts := &execution{id: "starts", settled: make(chan struct{})}
		fails := &execution{id: "fails", settled: make(chan struct{})}
		for _, e := range []*execution{starts, fails} {
			checktest.Must(t, r.reserve(e))
		}
		go func() {
			time.Sleep(time.Second)
			r.release(fails)
			r.add(starts)
		}()
		if e, err := r.get("starts"); err != nil || e != starts {
			t.Errorf("got %v, %v", e, err)
		}
		if e, err := r.get("fails"); err == nil {
			t.Errorf("got %v", e)
		}
	})
}
