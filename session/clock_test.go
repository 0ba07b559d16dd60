//go:build linux

package session_test

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/workcell-dev/workcell/session"
)

// setClock returns a time as the system would have told it had somebody set its clock: the hour differs, the monotonic
// reading beside it does not. No call of the standard library makes one, so its seconds are changed in place.
func setClock(t time.Time, by time.Duration) time.Time {
	const nanosecondBits = 30
	*(*uint64)(unsafe.Pointer(&t)) += uint64(by/time.Second) << nanosecondBits
	return t
}

// TestClockJumps sets the clock under sessions of two processes. Nobody's idle time is over by that, neither by its own
// process's reckoning nor by the other's, and it still is once the time has really passed.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	now := time.Now()
	if later := setClock(now, time.Hour); later.Sub(now) != 0 || later.Round(0).Sub(now.Round(0)) != time.Hour {
		t.Fatal("times are made in another way than this test knows")
	}
	e := sharing{newEngine(t)}
	opts := shared()
	var jump, passed atomic.Int64
	managers := []*session.Manager{newManager(t, e, opts), newManager(t, e, opts)}
	var sessions []*session.Session
	for i, m := range managers {
		m.SetClock(func() time.Time {
			return setClock(time.Now().Add(time.Duration(passed.Load())), time.Duration(jump.Load()))
		})
		sessions = append(sessions, mustOpen(t, m, session.WorkflowKey("run_1", []string{"first", "second"}[i])))
	}
	for _, by := range []time.Duration{time.Hour, -time.Hour, 365 * 24 * time.Hour, 0} {
		jump.Store(int64(by))
		for _, m := range managers {
			m.Reap(t.Context())
		}
		for _, s := range sessions {
			if got := output(t, s, "echo alive"); got != "alive\n" || s.Info().State != session.StateReady {
				t.Fatalf("the clock was set by %v: %s is %s, %q", by, s.Key(), s.Info().State, got)
			}
		}
	}
	jump.Store(int64(-time.Hour)) // a clock that was set back keeps nobody
	passed.Store(int64(11 * time.Minute))
	for _, m := range managers {
		m.Reap(t.Context())
	}
	if e.count() != 0 {
		t.Errorf("%d sandboxes are left after 11 idle minutes", e.count())
	}
}
