//go:build linux

package session_test

import (
	"context"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// TestOrphanTimeout: a guest outlives its managers by more than they would have let it be idle.
func TestOrphanTimeout(t *testing.T) {
	for idle, least := range map[time.Duration]time.Duration{0: session.DefaultIdleTimeout, time.Second: 3 * time.Minute, time.Hour: time.Hour, -1: -1} {
		e := newEngine(t)
		var spec backend.Spec
		e.setHooks(func(_ context.Context, s backend.Spec) error { spec = s; return nil }, nil, nil)
		m := newManager(t, e, nil)
		if _, _, err := m.Open(t.Context(), session.AgentKey("run", "default"), session.Request{Image: "debian", IdleTimeout: idle}); err != nil {
			t.Fatal(err)
		}
		if got := spec.OrphanTimeout; idle < 0 && got != 0 || idle >= 0 && (got <= least || got > least+5*time.Minute) || !spec.Ephemeral {
			t.Errorf("idle %v: orphan timeout %v, ephemeral %v", idle, got, spec.Ephemeral)
		}
	}
}

// TestEndedRemoved: what a process left that nobody else knew of is removed by any other process, once it has ended, and
// nothing else.
func TestEndedRemoved(t *testing.T) {
	e := newEngine(t)
	old := time.Now().Add(-2 * time.Hour)
	keep := map[string]bool{}
	for _, c := range []struct {
		ephemeral, stopped, keep bool
		created                  time.Time
	}{{true, true, false, old}, {true, false, true, old}, {false, true, true, old}, {true, true, true, time.Now()}} {
		info, err := e.Create(t.Context(), backend.Spec{
			ID: "sbx_" + session.NewID(), Instance: session.NewID(), Key: "agent:run/default", Ephemeral: c.ephemeral, Created: c.created,
		})
		must(t, err)
		if c.stopped {
			must(t, e.Stop(t.Context(), info.ID))
		}
		if c.keep {
			keep[info.ID] = true
		}
	}
	m := newManager(t, e, &session.Options{ReapEvery: -1})
	must(t, m.Sweep(t.Context()))
	left, err := e.List(t.Context(), backend.Filter{})
	must(t, err)
	for _, info := range left {
		if !keep[info.ID] {
			t.Errorf("left: %+v", info)
		}
		delete(keep, info.ID)
	}
	if len(keep) > 0 {
		t.Errorf("removed: %v", keep)
	}
}
