//go:build linux

package session_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// full is a store in which no record can change its owner while now is true.
type full struct {
	record.Store
	now atomic.Bool
}

func (f *full) Take(ctx context.Context, id, from, to string) (record.Record, error) {
	if f.now.Load() {
		return record.Record{}, errDisk
	}
	return f.Store.Take(ctx, id, from, to)
}

// TestLostIsNotOurs verifies that closing a manager does not remove a sandbox that it lost and gave up, if another
// process has used it or may have used it since.
func TestLostIsNotOurs(t *testing.T) {
	t.Parallel()
	key := session.UserKey("lab")
	for name, test := range map[string]struct {
		other func(t *testing.T, m *session.Manager, id string) // action of another process after the loss
		full  bool                                              // the store is full when the first manager is closed
	}{
		"open elsewhere, disk full": {func(t *testing.T, m *session.Manager, _ string) { mustOpen(t, m, key) }, true},
		"open elsewhere":            {func(t *testing.T, m *session.Manager, _ string) { mustOpen(t, m, key) }, false},
		"used and left": {func(t *testing.T, m *session.Manager, _ string) {
			output(t, mustOpen(t, m, key), "echo hours of work > other")
			must(t, m.Detach(t.Context()))
		}, false},
		"visited": {func(t *testing.T, m *session.Manager, id string) {
			mustConnect(t, m, id)
		}, false},
		"removed, its workspace kept": {func(t *testing.T, m *session.Manager, id string) { must(t, m.Remove(t.Context(), id, false)) }, false},
		"nobody knows":                {func(*testing.T, *session.Manager, string) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
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
				t.Errorf("the files are gone: %+v", recordOf(t, opts.Store, s.ID()))
			}
		})
	}
}

// TestLostOnAFullDisk verifies that the next opener gets a lost sandbox that could neither be given up nor removed
// because the disk was full.
func TestLostOnAFullDisk(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	store := &brokenStore{Store: opts.Store}
	taking := &full{Store: store}
	opts.Store = taking
	m := newManager(t, e, opts)
	req := testImage()
	req.IdlePolicy = record.IdleStop
	s := openAs(t, m, session.UserKey("lab"), req)
	taking.now.Store(true)
	store.update.Store(true)
	e.murder(s.Info().EngineID)
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

// TestLostLeavesNothing verifies that the files of an agent's lost sandbox are removed after its idle timeout, whatever
// its process does and even if the engine has only the workspace.
func TestLostLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opts *session.Options
		end  func(*testing.T, *session.Manager)
	}{
		"lives":        {shared(), nil},
		"has no store": {&session.Options{ReapEvery: -1, IdleTimeout: 10 * time.Minute}, nil},
		"dies":         {shared(), func(_ *testing.T, m *session.Manager) { m.Die() }},
		"detaches":     {shared(), func(t *testing.T, m *session.Manager) { must(t, m.Detach(t.Context())) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			first := dying(t, e, test.opts)
			s := openKept(t, first, record.AgentKey("run_1", "default"), testImage())
			e.remove(s.Info().EngineID)
			eventually(t, "it is lost", func() bool { return s.Info().State == session.StateLost })
			m := first
			if test.end == nil {
				defer func() { must(t, first.Close(context.Background())) }()
			} else {
				test.end(t, first)
				m = newManager(t, e, test.opts)
			}
			clock := newClock(m)
			for after, there := range []bool{true, false} {
				clock.add(9 * time.Minute)
				m.Reap(t.Context())
				if e.hasFiles(t, s.ID()) != there {
					t.Errorf("round %d: files %v, want %v", after, !there, there)
				}
			}
		})
	}
}

// TestLostGoesWithItsManager verifies that Close of a manager without a store removes a lost sandbox that was not
// opened again.
func TestLostGoesWithItsManager(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m, key := newManager(t, e, &session.Options{ReapEvery: -1}), record.AgentKey("run_1", "default")
	s := openKept(t, m, key, testImage())
	e.remove(s.Info().EngineID)
	eventually(t, "it is lost", func() bool { return s.Info().State == session.StateLost })
	e.setHooks(func(context.Context, backend.Spec) error { return backend.ErrImage }, nil, nil)
	if _, _, err := m.Open(t.Context(), key, testImage()); !errors.Is(err, backend.ErrImage) || !e.hasFiles(t, s.ID()) {
		t.Errorf("opened again: %v, files %v", err, e.hasFiles(t, s.ID()))
	}
	must(t, m.Close(t.Context()))
	if e.hasFiles(t, s.ID()) {
		t.Error("its files are left")
	}
}

// TestExpiredIsMissed verifies that Gone reports an expired sandbox of a resumed run for a month, even if its removal
// took several rounds.
func TestExpiredIsMissed(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	s, m, clock := interrupted(t, e, opts, testImage())
	clock.add(11 * time.Minute)
	e.setHooks(nil, func(string) error { return backend.ErrUnavailable }, nil)
	for range 2 {
		m.Reap(t.Context())
		if rec := recordOf(t, opts.Store, s.ID()); e.count() != 1 || rec.State != record.Removing {
			t.Errorf("%d sandboxes, record %+v", e.count(), rec)
		}
	}
	e.setHooks(nil, nil, nil)
	m.Reap(t.Context())
	if e.count() != 0 || e.hasFiles(t, s.ID()) {
		t.Errorf("%d sandboxes, the files exist: %v", e.count(), e.hasFiles(t, s.ID()))
	}
	clock.add(29 * 24 * time.Hour)
	m.Reap(t.Context())
	if gone, _, err := m.Gone(t.Context(), runKey.Scope()); err != nil || len(gone) != 1 {
		t.Errorf("gone are %v, %v", gone, err)
	}
}

// TestLostRun verifies that the next opener of a lost sandbox gets its files, in the same process and in another
// process, and that nothing is left after the run.
func TestLostRun(t *testing.T) {
	t.Parallel()
	for key, later := range map[session.Key]time.Duration{
		runKey: 24 * time.Hour, session.UserKey("lab"): 24 * time.Hour, record.AgentKey("run_1", "a"): 9 * time.Minute,
		replicaKey("a"): 9 * time.Minute,
		{Namespace: record.NamespaceMCP, ID: "run_1", Name: "a"}: 9 * time.Minute,
	} {
		for name, ruin := range ruins {
			for next, die := range map[string]bool{"same process": false, "next process": true} {
				t.Run(key.String()+" "+name+" "+next, func(t *testing.T) {
					t.Parallel()
					e, opts := newEngine(t), shared()
					m := dying(t, e, opts)
					s := openKept(t, m, key, testImage())
					ruin(e, s.Info().EngineID)
					eventually(t, "it is lost", func() bool { return s.Info().State == session.StateLost })
					eventually(t, "its record has no owner", func() bool { return recordOf(t, opts.Store, s.ID()).Owner == "" })
					if list := mustList(t, m); len(list) != 1 {
						t.Errorf("list %+v", list)
					}
					clock := newClock(m)
					clock.add(later)
					m.Reap(t.Context())
					if die {
						m.Die()
						m = newManager(t, e, opts)
						m.Reap(t.Context())
					}
					before := recordOf(t, opts.Store, s.ID()).Expires
					if gone, _, err := m.Gone(t.Context(), key.Scope()); err != nil || len(gone) > 0 {
						t.Errorf("Gone = %v, %v", gone, err)
					}
					if after := recordOf(t, opts.Store, s.ID()).Expires; after.Before(before) {
						t.Errorf("to look let it expire at %v, not %v", after, before)
					}
					reopen(t, m, key, testImage(), s.ID())
					must(t, m.CloseScope(t.Context(), key.Scope()))
					if e.count() != 0 || e.hasFiles(t, s.ID()) {
						t.Errorf("%d sandboxes are left, files: %v", e.count(), e.hasFiles(t, s.ID()))
					}
				})
			}
		}
	}
}

// TestLostIsMissed verifies that Gone reports a lost sandbox of a resumed run for a month. It makes no difference which
// files the engine kept or whether the sandbox could be removed at once.
func TestLostIsMissed(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func(e *engine, engineID string){
		"stopped": func(e *engine, engineID string) {
			e.murder(engineID)
		},
		"vanished": func(e *engine, engineID string) { e.remove(engineID) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			key := session.WorkflowKey("run_1", "default")
			first, m := dying(t, e, opts), newManager(t, e, opts)
			clock := newClock(m)
			req := testImage()
			req.Limits.WorkspaceBytes = 1 << 20 // in memory, so that the files are lost with the processes
			s := openAs(t, first, key, req)
			how(e, s.Info().EngineID)
			eventually(t, "it is lost", func() bool { return recordOf(t, opts.Store, s.ID()).State == record.Removing })
			first.Die()
			e.setHooks(nil, func(string) error { return backend.ErrUnavailable }, nil)
			for _, later := range []time.Duration{0, time.Hour, 10 * 24 * time.Hour, 15 * 24 * time.Hour} {
				clock.add(later)
				m.Reap(t.Context())
				gone, _, err := m.Gone(t.Context(), key.Scope())
				if err != nil || len(gone) != 1 {
					t.Errorf("%v later: gone are %v, %v", later, gone, err)
				}
				if there := later == 0; e.hasFiles(t, s.ID()) != there {
					t.Errorf("%v later the files exist: %v", later, !there)
				}
				e.setHooks(nil, nil, nil)
			}
			clock.add(6 * 24 * time.Hour)
			m.Reap(t.Context())
			if gone, _, err := m.Gone(t.Context(), key.Scope()); err != nil || len(gone) != 0 {
				t.Errorf("after a month gone are %v, %v", gone, err)
			}
		})
	}
}
