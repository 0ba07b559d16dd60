//go:build linux

package session_test

import (
	"testing"
	"time"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestReasons verifies that a record contains the reason why its sandbox is not ready, and that the reason is cleared
// when the sandbox is ready again.
func TestReasons(t *testing.T) {
	t.Parallel()
	store := record.NewMemoryStore()
	m, clock := newTimed(t, newEngine(t), &session.Options{ReapEvery: -1, IdleTimeout: 10 * time.Minute, Store: store})
	want := func(s *session.Session, reasons string) {
		t.Helper()
		if got := recordOf(t, store, s.ID()).Reason; got != reasons {
			t.Errorf("%s: %q, want %q", s.Key(), got, reasons)
		}
	}
	ready := mustOpen(t, m, session.WorkflowKey("run_1", "ready"))
	want(ready, "")
	must(t, ready.Close(t.Context()))
	want(ready, "removed")
	ended := mustOpen(t, m, session.WorkflowKey("run_1", "ended"))
	must(t, m.CloseScope(t.Context(), ended.Key().Scope()))
	want(ended, "run ended")
	idle := mustOpen(t, m, record.UserScope("alice").Key("user"))
	clock.add(11 * time.Minute)
	m.Reap(t.Context())
	want(idle, "idle")
	again := mustOpen(t, m, record.UserScope("alice").Key("user"))
	want(again, "")
}
