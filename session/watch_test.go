//go:build linux

package session_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/session"
)

// TestWatchGap verifies that a watch continues after a failed look, and reports that it could not see changes.
func TestWatchGap(t *testing.T) {
	t.Parallel()
	b, err := memory.New(nil)
	must(t, err)
	m := newManager(t, b, nil)
	s := mustOpen(t, m, session.UserKey("lab"))
	var away atomic.Bool
	b.Fault(func(_ context.Context, c memory.Call) error {
		if c.Op == memory.OpList && away.CompareAndSwap(true, false) {
			return backend.ErrUnavailable
		}
		return nil
	})
	var types []session.EventType
	for e, err := range m.Watch(t.Context(), session.WatchFilter{}) {
		must(t, err)
		types = append(types, e.Type)
		if e.Type == session.EventRemoved {
			break
		}
		if e.Type == session.EventPresent {
			must(t, s.Close(t.Context()))
			away.Store(true)
		}
	}
	want := []session.EventType{session.EventPresent, session.EventGap, session.EventRemoved}
	if !slices.Equal(types, want) {
		t.Errorf("events %v, want %v", types, want)
	}
}
