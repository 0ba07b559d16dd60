//go:build linux

package session_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/workcell-dev/workcell/session"
)

// full is a store in which no record can change hands for a while.
type full struct {
	session.Store
	now atomic.Bool
}

func (f *full) Take(ctx context.Context, id, from, to string) (session.Record, error) {
	if f.now.Load() {
		return session.Record{}, errDisk
	}
	return f.Store.Take(ctx, id, from, to)
}

// TestLostIsNotOurs: what a manager lost and gave up, and others used or may use since, is not removed by its end.
func TestLostIsNotOurs(t *testing.T) {
	t.Parallel()
	key := session.UserKey("lab")
	for name, test := range map[string]struct {
		other func(t *testing.T, m *session.Manager, id string) // what another process does since
		full  bool                                              // the store cannot be written when the first one ends
	}{
		"open elsewhere, disk full": {func(t *testing.T, m *session.Manager, _ string) { mustOpen(t, m, key) }, true},
		"open elsewhere":            {func(t *testing.T, m *session.Manager, _ string) { mustOpen(t, m, key) }, false},
		"used and left": {func(t *testing.T, m *session.Manager, _ string) {
			output(t, mustOpen(t, m, key), "echo hours of work > other")
			must(t, m.Detach(t.Context()))
		}, false},
		"visited": {func(t *testing.T, m *session.Manager, id string) {
			_, err := m.Connect(t.Context(), id)
			must(t, err)
		}, false},
		"removed, its workspace kept": {func(t *testing.T, m *session.Manager, id string) { must(t, m.Remove(t.Context(), id, false)) }, false},
		"nobody can tell":             {func(*testing.T, *session.Manager, string) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := sharing{newEngine(t)}
			opts := shared()
			store := &full{Store: opts.Store}
			own := *opts
			own.Store = store
			m := dying(t, e, &own)
			s := lost(t, e, m, opts, key)
			test.other(t, newManager(t, e, opts), s.ID())
			store.now.Store(test.full)
			if err := m.Close(t.Context()); errors.Is(err, errDisk) != test.full || err != nil && !test.full {
				t.Errorf("Close = %v, the disk is full: %v", err, test.full)
			}
			if !e.hasFiles(t, s.ID()) {
				t.Errorf("the files are gone: %+v", record(t, opts.Store, s.ID()))
			}
		})
	}
}

// TestLostOnAFullDisk: what could neither be given up nor removed for want of space is there for whoever opens it next.
func TestLostOnAFullDisk(t *testing.T) {
	t.Parallel()
	e := sharing{newEngine(t)}
	opts := shared()
	store := &brokenStore{Store: opts.Store}
	taking := &full{Store: store}
	opts.Store = taking
	m := newManager(t, e, opts)
	req := testImage()
	req.IdlePolicy = session.IdleStop
	s, _, err := m.Open(t.Context(), session.UserKey("lab"), req)
	must(t, err)
	taking.now.Store(true)
	store.update.Store(true)
	b, _ := e.box(s.Info().EngineID)
	b.murder()
	eventually(t, "it is lost", func() bool { return s.Info().State == session.StateLost })
	if err := s.Close(t.Context()); !errors.Is(err, errDisk) || !e.hasFiles(t, s.ID()) {
		t.Errorf("Close with a full disk = %v", err)
	}
	taking.now.Store(false)
	store.update.Store(false)
	m.Reap(t.Context())
	other := newManager(t, e, opts)
	if again, created, err := other.Open(t.Context(), session.UserKey("lab"), testImage()); err != nil || created || again.ID() != s.ID() {
		t.Errorf("Open by another = %v, %v, %v, want the old sandbox", again, created, err)
	}
}
