//go:build linux

package session_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

// recordOf returns an existing record.
func recordOf(t *testing.T, store record.Store, id string) record.Record {
	t.Helper()
	rec, err := store.Get(t.Context(), id)
	must(t, err)
	return rec
}

// TestUnreadable verifies that a sandbox with an unreadable recorded request still exists for all operations. It is not
// replaced, recreated, or swept, and it can be removed.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	key := session.UserKey("lab")
	first := dying(t, e, opts)
	s := mustOpen(t, first, key)
	first.Die()
	b, _ := e.fakeSandbox(s.Info().EngineID)
	b.info.Key = "what a crash left of it"
	m := newManager(t, e, opts)
	if _, err := m.Connect(t.Context(), s.ID()); !errors.Is(err, backend.ErrLost) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("Connect = %v, want ErrLost and why", err)
	}
	if got, _, err := m.Open(t.Context(), key, testImage()); !errors.Is(err, backend.ErrLost) {
		t.Errorf("Open = %v, %v, want ErrLost", got, err)
	}
	rec := recordOf(t, opts.Store, s.ID())
	if rec.State != record.Ready || rec.Owner != "" || e.creates.Load() != 1 {
		t.Errorf("after Open: record %+v, %d sandboxes were made", rec, e.creates.Load())
	}
	rec.LastUsed, rec.Expires = time.Now().Add(-72*time.Hour), time.Now().Add(-48*time.Hour)
	must(t, opts.Store.Update(t.Context(), rec))
	m.Reap(t.Context())
	if got := recordOf(t, opts.Store, s.ID()); got.State != record.Ready || e.count() != 1 {
		t.Errorf("after the sweep: record %+v, %d sandboxes", got, e.count())
	}
	must(t, m.Remove(t.Context(), s.ID(), true))
	if got := recordOf(t, opts.Store, s.ID()); got.State != record.Closed || e.count() != 0 {
		t.Errorf("after Remove: record %+v, %d sandboxes", got, e.count())
	}
}

// TestLostForAWhile verifies that the record of a named sandbox stays until it expires if the engine does not have the
// sandbox. Then the record is deleted, not closed. If the sandbox reappears, for example because a disk is mounted
// again, it is found.
func TestLostForAWhile(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	m := newManager(t, e, opts)
	key := session.UserKey("lab")
	rec := record.Record{ID: "sbx_" + record.NewID(), Key: key, Engine: e.Name(), EngineID: "engine-away", State: record.Ready,
		Owner: "dead", Created: time.Now().Add(-time.Hour), Expires: time.Now().Add(time.Minute)}
	must(t, opts.Store.Insert(t.Context(), rec))
	m.Reap(t.Context())
	if got := recordOf(t, opts.Store, rec.ID); got.State != record.Ready {
		t.Errorf("before it expires: %+v", got)
	}
	rec.Expires = time.Now().Add(-time.Minute)
	must(t, opts.Store.Update(t.Context(), rec))
	m.Reap(t.Context())
	if got, err := opts.Store.Get(t.Context(), rec.ID); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("after it expired: %+v, %v, want ErrNotFound", got, err)
	}
	plant(t, e, opts.Store, record.Record{ID: rec.ID, Key: key})
	s, created, err := m.Open(t.Context(), key, session.Request{Image: "test:1", Mode: session.OpenAsIs})
	if err != nil || created || s.ID() != rec.ID {
		t.Errorf("Open when it came back = %v, %v, %v", s, created, err)
	}
	there := plant(t, e, opts.Store, record.Record{Key: session.UserKey("other"), State: record.Ready, Expires: rec.Expires})
	m.Reap(t.Context())
	if got := recordOf(t, opts.Store, there.ID); got.State != record.Closed {
		t.Errorf("an existing sandbox: %+v", got)
	}
}

// TestCallsUnderWayAreAUse verifies that a session's record does not expire during a call, only after the last call.
func TestCallsUnderWayAreAUse(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	m, clock := newTimed(t, e, opts)
	s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	done := make(chan error, 1)
	go func() {
		_, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "while [ ! -e stop ]; do sleep 0.05; done"})
		done <- err
	}()
	eventually(t, "the command is running", func() bool { return s.Active() > 0 })
	clock.add(time.Hour)
	m.Reap(t.Context())
	if rec, want := recordOf(t, opts.Store, s.ID()), m.Now().Add(10*time.Minute); !rec.Expires.Equal(want) {
		t.Errorf("it expires %v, want %v", rec.Expires, want)
	}
	output(t, s, "touch stop")
	must(t, <-done)
}

// TestFoundWithoutRecord verifies the idle timeout of a named sandbox without a record. With a shared store, other
// processes may know the sandbox. A manager without a store is the only one that will ever clean it up.
func TestFoundWithoutRecord(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		store record.Store
		want  time.Duration
	}{
		"common store": {record.NewMemoryStore(), -1},
		"no store":     {nil, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			opts.Store = test.store
			m := newManager(t, e, opts)
			plant(t, e, nil, record.Record{Key: session.UserKey("lab")})
			s, created, err := m.Open(t.Context(), session.UserKey("lab"), session.Request{Image: "test:1", Mode: session.OpenAsIs})
			if err != nil || created || s.Info().IdleTimeout != test.want {
				t.Errorf("Open = %v, %v, idle timeout %v, want %v", created, err, s.Info().IdleTimeout, test.want)
			}
		})
	}
}

// TestNewestWithoutRecord verifies that the newest of a key's sandboxes without records gets the key. It is assumed to
// be the last used.
func TestNewestWithoutRecord(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	m := newManager(t, e, opts)
	key := session.WorkflowKey("run_1", "default")
	older := plant(t, e, opts.Store, record.Record{Key: key, Created: time.Now().Add(-2 * time.Hour)})
	newer := plant(t, e, opts.Store, record.Record{Key: key, Created: time.Now().Add(-time.Hour)})
	m.Reap(t.Context())
	if o, n := recordOf(t, opts.Store, older.ID).State, recordOf(t, opts.Store, newer.ID).State; o != record.Removing || n != record.Ready {
		t.Errorf("the older one is %s, the newer one %s", o, n)
	}
}

// TestSilentSandboxIsKept verifies that an expired sandbox is kept for a day if its engine or guest does not answer,
// because it may be in use.
func TestSilentSandboxIsKept(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	first := dying(t, e, opts)
	s := mustOpen(t, first, session.WorkflowKey("run_1", "default"))
	run(t, s, sandbox.ExecRequest{Command: "sleep 1000", Background: true})
	first.Die()
	before := recordOf(t, opts.Store, s.ID())
	m, clock := newTimed(t, e, opts)
	e.setHooks(nil, nil, func(context.Context, string) error { return backend.ErrUnavailable })
	for range 3 {
		clock.add(8 * time.Hour)
		m.Reap(t.Context())
	}
	after := recordOf(t, opts.Store, s.ID())
	if e.count() != 1 || after.State != record.Ready || after.Owner != "" || !after.LastUsed.Equal(before.LastUsed) {
		t.Fatalf("%d sandboxes, record %+v, it was last used %v", e.count(), after, before.LastUsed)
	}
	e.setHooks(nil, nil, nil)
	clock.add(time.Hour)
	m.Reap(t.Context())
	if after = recordOf(t, opts.Store, s.ID()); e.count() != 1 || !after.LastUsed.Equal(m.Now()) {
		t.Fatalf("%d sandboxes when it answers again, record %+v", e.count(), after)
	}
	e.setHooks(nil, nil, func(context.Context, string) error { return backend.ErrUnavailable })
	for range 3 {
		clock.add(9 * time.Hour)
		m.Reap(t.Context())
	}
	e.holds(t, 0)
}

// stuck is an engine with endless removals.
type stuck struct {
	*engine
	began chan context.Context
}

func (e stuck) Remove(ctx context.Context, _ string, _ backend.RemoveOptions) error {
	e.began <- ctx
	<-ctx.Done()
	return ctx.Err()
}

// TestExitWaitsForNoRemoval verifies that closing a manager abandons the removal of another process's sandbox, and that
// the next manager removes it.
func TestExitWaitsForNoRemoval(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	rec := plant(t, e, opts.Store, record.Record{Key: session.WorkflowKey("run_1", "default"), State: record.Ready, Owner: "dead",
		Expires: time.Now().Add(-time.Minute)})
	sweeping := *opts
	sweeping.ReapEvery = time.Hour // the manager sweeps when it starts
	began := make(chan context.Context, 1)
	m := dying(t, stuck{e, began}, &sweeping)
	removal := <-began
	must(t, m.Detach(t.Context()))
	if !errors.Is(removal.Err(), context.Canceled) {
		t.Errorf("the removal was not canceled: %v", removal.Err())
	}
	if got := recordOf(t, opts.Store, rec.ID); got.State != record.Removing || got.Owner != "" {
		t.Errorf("record %+v", got)
	}
	newManager(t, e, opts).Reap(t.Context())
	if got := recordOf(t, opts.Store, rec.ID); got.State != record.Closed || e.count() != 0 {
		t.Errorf("record %+v, %d sandboxes", got, e.count())
	}
}

// TestReclaimAt verifies when sandboxes are reclaimed. Package owner tests the times of the other states.
func TestReclaimAt(t *testing.T) {
	t.Parallel()
	now := time.Now()
	in := func(d time.Duration) time.Time { return now.Add(d) }
	agent, run := record.AgentKey("run_1", "default"), session.WorkflowKey("run_1", "default")
	const ready = record.Ready
	for name, test := range map[string]struct {
		rec  record.Record
		want time.Time // zero means never
	}{
		"a run's":                        {record.Record{State: ready, Key: run, Owner: "x", Idle: time.Hour, Expires: in(time.Hour)}, in(time.Hour)},
		"an agent's":                     {record.Record{State: ready, Key: agent, Owner: "x", Idle: time.Hour, Expires: in(time.Hour)}, in(2 * time.Minute)},
		"kept":                           {record.Record{State: record.Removing, Expires: in(time.Hour)}, in(time.Hour)},
		"overdue":                        {record.Record{State: record.Removing, Expires: in(-time.Hour)}, in(-time.Hour)},
		"overdue for too long":           {record.Record{State: record.Removing, Expires: in(-25 * time.Hour)}, time.Time{}},
		"closed":                         {record.Record{State: record.Closed, EngineID: "x", Created: now, Expires: in(time.Hour)}, time.Time{}},
		"closed before it was made":      {record.Record{State: record.Closed, Created: in(-time.Minute)}, in(time.Minute)},
		"closed long after it was begun": {record.Record{State: record.Closed, Created: in(-3 * time.Minute)}, time.Time{}},
	} {
		at, ok := admin.ReclaimAt(test.rec, now)
		if ok == test.want.IsZero() || ok && !at.Equal(test.want) {
			t.Errorf("%s: in %v, %v, want %v", name, at.Sub(now), ok, test.want.Sub(now))
		}
	}
}
