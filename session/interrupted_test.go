//go:build linux

package session_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

// interrupted opens a run's sandbox in a process that then dies. It returns the session, another process's manager, and
// that manager's clock.
func interrupted(t *testing.T, e *engine, opts *session.Options, req session.Request) (*session.Session, *session.Manager, *clock) {
	t.Helper()
	first := dying(t, e, opts)
	s := openKept(t, first, runKey, req)
	first.Die()
	m := newManager(t, e, opts)
	return s, m, newClock(m)
}

var runKey = session.WorkflowKey("run_1", "default")

// TestInterrupted verifies that the sandbox of a run whose process died is kept until its idle timeout. A process that
// a command left running counts as use.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]bool{"idle": false, "background process": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			first := dying(t, e, opts)
			s := mustOpen(t, first, runKey)
			if left {
				output(t, s, background)
			}
			first.Die()
			m, clock := newTimed(t, e, opts)
			clock.add(9 * time.Minute)
			m.Reap(t.Context())
			if e.count() != 1 || listed(t, m, s.ID()) != session.StateReady {
				t.Fatal("it ended too soon")
			}
			if left {
				for range 5 {
					clock.add(time.Hour)
					m.Reap(t.Context())
				}
				secondary := mustConnect(t, m, s.ID())
				wantOutput(t, secondary, "touch stop; echo alive", "alive\n")
				must(t, secondary.Close(t.Context()))
			}
			eventually(t, "it goes when it is idle", func() bool {
				clock.add(11 * time.Minute)
				m.Reap(t.Context())
				return e.count() == 0 && !e.hasFiles(t, s.ID())
			})
			if gone, _, err := m.Gone(t.Context(), runKey.Scope()); err != nil || !slices.Equal(gone, []session.Key{runKey}) {
				t.Errorf("Gone = %v, %v", gone, err)
			}
			opensAnother(t, m, runKey, testImage(), s.ID())
		})
	}
}

// background starts a detached process that exits when a file "stop" exists.
const background = "setsid sh -c 'while [ ! -e stop ]; do sleep 0.05; done' >/dev/null 2>&1 </dev/null &"

// TestCloseOrphans verifies that the end of a resumed run closes the sandboxes of its first process, including
// sandboxes that were not opened since.
func TestCloseOrphans(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	first := dying(t, e, opts)
	kept := testImage()
	kept.Retention = time.Hour
	other, another := session.WorkflowKey("run_1", "other"), session.WorkflowKey("run_2", "default")
	for _, key := range []session.Key{runKey, other, another} {
		mustOpen(t, first, key)
	}
	s := openAs(t, first, session.WorkflowKey("run_1", "kept"), kept)
	first.Die()
	m := newManager(t, e, opts)
	mustOpen(t, m, runKey)
	must(t, m.CloseScope(t.Context(), runKey.Scope()))
	list, err := m.List(t.Context())
	must(t, err)
	states := map[string]session.State{}
	for _, info := range list {
		states[info.Key.String()] = info.State
	}
	if len(states) != 2 || states[another.String()] != session.StateReady || states[s.Key().String()] != session.StateKept {
		t.Errorf("there are %v", states)
	}
}

// TestAbandonedDuringSweep verifies that a sandbox is listed and can be removed while the manager's own sweep checks
// it.
func TestAbandonedDuringSweep(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	s := left(t, e, opts, session.UserKey("lab"), record.IdleStop)
	m, clock := newTimed(t, e, opts)
	clock.add(time.Hour)
	checking, checked := make(chan struct{}), make(chan struct{})
	var first sync.Once
	e.setHooks(nil, nil, func(context.Context, string) error {
		first.Do(func() {
			close(checking)
			<-checked
		})
		return nil
	})
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		m.Reap(t.Context())
	}()
	<-checking
	list, err := admin.Abandoned(t.Context(), m)
	if err != nil || len(list) != 1 || list[0].ID != s.ID() {
		t.Fatalf("Abandoned = %v, %v", list, err)
	}
	time.AfterFunc(100*time.Millisecond, func() { close(checked) })
	must(t, admin.RemoveAbandoned(t.Context(), m, list[0]))
	<-swept
	e.holds(t, 0)
}

// TestConnectedIsKept verifies that a sandbox with a connected process is neither removed as garbage nor expired. After
// the process has disconnected, the sandbox is removed.
func TestConnectedIsKept(t *testing.T) {
	t.Parallel()
	retention := func(t *testing.T, m *session.Manager, _ record.Record, c *clock) error {
		c.add(2 * time.Hour)
		m.Reap(t.Context())
		return nil
	}
	for name, test := range map[string]struct {
		end func(t *testing.T, m *session.Manager, rec record.Record, c *clock) error
		own bool // the connected process is the living owner
	}{
		"garbage": {func(t *testing.T, m *session.Manager, rec record.Record, _ *clock) error {
			return admin.RemoveAbandoned(t.Context(), m, rec)
		}, false},
		"retention":      {retention, false},
		"retention, own": {retention, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			m, other := newManager(t, e, opts), newManager(t, e, opts)
			c, first := newClock(m), m
			if !test.own {
				first = dying(t, e, opts)
			}
			req := testImage()
			req.Retention = time.Hour
			s := openAs(t, first, runKey, req)
			must(t, first.CloseScope(t.Context(), runKey.Scope()))
			if !test.own {
				first.Die()
			}
			secondary := mustConnect(t, other, s.ID())
			err := test.end(t, m, recordOf(t, opts.Store, s.ID()), c)
			if e.count() != 1 || err != nil && !errors.Is(err, backend.ErrExists) {
				t.Fatalf("it was removed: %v", err)
			}
			output(t, secondary, "true")
			if name == "garbage" { // garbage collection waits for the end of connections
				time.AfterFunc(300*time.Millisecond, func() { _ = secondary.Close(context.Background()) })
				if err := test.end(t, m, recordOf(t, opts.Store, s.ID()), c); err != nil || e.count() != 0 {
					t.Errorf("it stays: %v", err)
				}
				return
			}
			must(t, secondary.Close(t.Context()))
			eventually(t, "it goes", func() bool { // the guest may not have noticed the disconnect yet
				err := test.end(t, m, recordOf(t, opts.Store, s.ID()), c)
				return err == nil && e.count() == 0
			})
		})
	}
}
