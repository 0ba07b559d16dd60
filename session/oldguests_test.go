//go:build linux

package session_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// keeper is an engine that keeps guests.
type keeper struct {
	sharing
	mu     sync.Mutex // guards guests
	guests []backend.OldGuest
	busy   string // somebody has this one again
}

func (k *keeper) OldGuests(context.Context) ([]backend.OldGuest, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.guests), nil
}

func (k *keeper) RemoveOldGuest(_ context.Context, name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if name == k.busy {
		return backend.ErrExists
	}
	k.guests = slices.DeleteFunc(k.guests, func(g backend.OldGuest) bool { return g.Name == name })
	return nil
}

func (k *keeper) names() (names []string) {
	list, _ := k.OldGuests(context.Background())
	for _, g := range list {
		names = append(names, g.Name)
	}
	return names
}

// TestSweepOfGuests: a sweep removes guests that nobody has needed for a day, and looks for them once an hour.
func TestSweepOfGuests(t *testing.T) {
	t.Parallel()
	now := time.Now()
	k := &keeper{sharing: sharing{newEngine(t)}, busy: "busy", guests: []backend.OldGuest{
		{Name: "new", Created: now.Add(-2 * time.Hour)}, {Name: "old", Created: now.Add(-25 * time.Hour)}, {Name: "busy", Created: now.Add(-25 * time.Hour)},
	}}
	m := newManager(t, k, shared())
	clock := newClock(m)
	m.Reap(t.Context())
	if got := k.names(); !slices.Equal(got, []string{"new", "busy"}) {
		t.Errorf("left are %v", got)
	}
	k.busy = ""
	clock.add(50 * time.Minute)
	m.Reap(t.Context())
	if got := k.names(); len(got) != 2 {
		t.Errorf("within the hour %v are left", got)
	}
	clock.add(22 * time.Hour)
	m.Reap(t.Context())
	if got := k.names(); len(got) != 0 {
		t.Errorf("left are %v", got)
	}
}
