//go:build linux

package session_test

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// interrupted opens a run's sandbox, whose process then dies, and returns it with another process's manager and its clock.
func interrupted(t *testing.T, e sharing, opts *session.Options, req session.Request) (*session.Session, *session.Manager, *clock) {
	t.Helper()
	first := dying(t, e, opts)
	s, _, err := first.Open(t.Context(), runKey, req)
	must(t, err)
	output(t, s, "echo kept > file")
	first.Die()
	m := newManager(t, e, opts)
	return s, m, newClock(m)
}

var runKey = session.WorkflowKey("run_1", "default")

// TestInterrupted: the sandbox of a run whose process died ends after three minutes. Who resumes the run gets another one
// with its files; nobody else does, and what nobody asks for goes when its idle time is over.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	e := sharing{newEngine(t)}
	opts := shared()
	s, m, clock := interrupted(t, e, opts, testImage())
	clock.add(2 * time.Minute)
	m.Reap(t.Context())
	if e.count() != 1 {
		t.Fatal("it ended too soon")
	}
	clock.add(time.Minute + time.Second)
	for range 2 {
		m.Reap(t.Context())
	}
	if e.count() != 0 || !e.hasFiles(t, s.ID()) {
		t.Fatalf("%d sandboxes, its files are there: %v", e.count(), e.hasFiles(t, s.ID()))
	}
	if got := listed(t, m, s.ID()); got != session.StateStopped {
		t.Errorf("it is listed as %q", got)
	}
	var vanished *session.VanishedError
	if _, err := m.Connect(t.Context(), s.ID()); !errors.As(err, &vanished) || vanished.Key != runKey {
		t.Errorf("Connect = %v, want a VanishedError", err)
	}
	if list, err := m.Abandoned(t.Context()); err != nil || len(list) != 1 || list[0].ID != s.ID() {
		t.Errorf("Abandoned = %v, %v", list, err)
	}
	if gone, err := m.Gone(t.Context(), runKey.Scope()); err != nil || len(gone) > 0 {
		t.Errorf("Gone = %v, %v", gone, err)
	}
	var conflict *session.ConflictError
	if _, _, err := m.Open(t.Context(), runKey, session.Request{Image: "test:2"}); !errors.As(err, &conflict) {
		t.Errorf("Open with another image = %v, want a ConflictError", err)
	}
	req := testImage()
	req.Prepare = func(context.Context, *session.Session) error { return errors.New("it has its files") }
	reopen(t, m, runKey, req, s.ID())
	if rec := record(t, opts.Store, s.ID()); rec.KeepWorkspace || rec.Owner != m.Owner() {
		t.Errorf("record %+v", rec)
	}
	must(t, m.CloseScope(t.Context(), runKey.Scope()))
	if e.count() != 0 || e.hasFiles(t, s.ID()) {
		t.Error("something is left of the run")
	}
}

// TestInterruptedExpires: the workspace of an interrupted run goes with its idle time, and the run's next process hears of it.
func TestInterruptedExpires(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(*testing.T, *session.Manager, *clock, sharing, string){
		"in time": func(t *testing.T, m *session.Manager, c *clock, _ sharing, _ string) {
			c.add(time.Hour)
			m.Reap(t.Context())
		},
		"by hand": func(t *testing.T, m *session.Manager, _ *clock, _ sharing, id string) {
			must(t, m.Remove(t.Context(), id, true))
		},
		"behind our back": func(t *testing.T, _ *session.Manager, _ *clock, e sharing, id string) {
			must(t, os.RemoveAll(e.workspace(id)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := sharing{newEngine(t)}
			opts := shared()
			s, m, clock := interrupted(t, e, opts, testImage())
			clock.add(4 * time.Minute)
			m.Reap(t.Context())
			remove(t, m, clock, e, s.ID())
			if e.count() != 0 || e.hasFiles(t, s.ID()) {
				t.Errorf("%d sandboxes, its files are there: %v", e.count(), e.hasFiles(t, s.ID()))
			}
			if gone, err := m.Gone(t.Context(), runKey.Scope()); err != nil || !slices.Equal(gone, []session.Key{runKey}) {
				t.Errorf("Gone = %v, %v", gone, err)
			}
			opensAnother(t, m, runKey, testImage(), s.ID())
		})
	}
}

// TestNotInterrupted: what is used, is retained, or has files elsewhere than in its workspace stays as it is.
func TestNotInterrupted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*session.Request)
		use    bool
		later  time.Duration // when it ends nevertheless, with its files or without
	}{
		"writable root": {func(r *session.Request) { r.Root = backend.RootWritable }, false, 10 * time.Minute},
		"retained":      {func(r *session.Request) { r.Retention = 8 * time.Minute }, false, 5 * time.Minute},
		"visited":       {func(*session.Request) {}, true, 4 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := sharing{newEngine(t)}
			opts := shared()
			req := testImage()
			test.change(&req)
			_, m, clock := interrupted(t, e, opts, req)
			clock.add(4 * time.Minute)
			if test.use {
				secondary, err := m.Connect(t.Context(), record(t, opts.Store, id(t, m)).ID)
				must(t, err)
				output(t, secondary, "true")
				must(t, secondary.Close(t.Context()))
			}
			m.Reap(t.Context())
			if e.count() != 1 {
				t.Fatal("it is gone")
			}
			clock.add(test.later)
			m.Reap(t.Context())
			if e.count() != 0 {
				t.Error("it is still there")
			}
		})
	}
}

// TestNotInterruptedUnderConnection: somebody is at a command of a sandbox that never expires for longer than it would stay.
func TestNotInterruptedUnderConnection(t *testing.T) {
	t.Parallel()
	e := sharing{newEngine(t)}
	opts := shared()
	req := testImage()
	req.IdleTimeout = -1
	s, m, clock := interrupted(t, e, opts, req)
	secondary, err := m.Connect(t.Context(), s.ID())
	must(t, err)
	stdin, end := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := secondary.Stream(t.Context(), session.ExecRequest{Argv: []string{"cat"}}, session.Streams{Stdin: stdin})
		ended <- err
	}()
	eventually(t, "the command is under way", func() bool { return secondary.Active() == 1 })
	clock.add(4 * time.Minute)
	m.Reap(t.Context())
	if e.count() != 1 {
		t.Error("it ended under a secondary connection")
	}
	must(t, end.Close())
	must(t, <-ended)
	must(t, secondary.Close(t.Context()))
	clock.add(4 * time.Minute)
	m.Reap(t.Context())
	if e.count() != 0 || !e.hasFiles(t, s.ID()) {
		t.Errorf("%d sandboxes, its files are there: %v", e.count(), e.hasFiles(t, s.ID()))
	}
}

// id returns the id of the only sandbox.
func id(t *testing.T, m *session.Manager) string {
	t.Helper()
	list, err := m.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("List = %v, %v", list, err)
	}
	return list[0].ID
}

// TestInterruptedAgain: a sandbox that cannot be removed is tried again; a process that died about then leaves no doubt.
func TestInterruptedAgain(t *testing.T) {
	t.Parallel()
	e := sharing{newEngine(t)}
	opts := shared()
	s, m, clock := interrupted(t, e, opts, testImage())
	var during session.Record
	e.setHooks(nil, func(string) (err error) {
		during, err = opts.Store.Get(t.Context(), s.ID())
		return errors.Join(err, backend.ErrUnavailable)
	}, nil)
	clock.add(4 * time.Minute)
	m.Reap(t.Context())
	if e.count() != 1 || !during.KeepWorkspace || during.State != session.RecordReady {
		t.Fatalf("%d sandboxes, record while it is removed: %+v", e.count(), during)
	}
	e.setHooks(nil, nil, nil)
	m.Reap(t.Context())
	if e.count() != 0 || !e.hasFiles(t, s.ID()) {
		t.Fatalf("%d sandboxes, its files are there: %v", e.count(), e.hasFiles(t, s.ID()))
	}
	during.Owner = "dead" // its process died after the engine had removed it
	must(t, opts.Store.Update(t.Context(), during))
	m.Reap(t.Context())
	again, created, err := m.Open(t.Context(), runKey, testImage())
	if err != nil || created || output(t, again, "cat file") != "kept\n" {
		t.Errorf("Open = %v, %v, %v", again, created, err)
	}
}

// TestCloseOrphans: a resumed run that ends closes what its first process had, also what nobody opened since.
func TestCloseOrphans(t *testing.T) {
	t.Parallel()
	e := sharing{newEngine(t)}
	opts := shared()
	first := dying(t, e, opts)
	kept := testImage()
	kept.Retention = time.Hour
	other, another := session.WorkflowKey("run_1", "other"), session.WorkflowKey("run_2", "default")
	for _, key := range []session.Key{runKey, other, another} {
		mustOpen(t, first, key)
	}
	s, _, err := first.Open(t.Context(), session.WorkflowKey("run_1", "kept"), kept)
	must(t, err)
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

// TestConnectedIsKept: what a process is connected to is neither garbage nor over, and is when the process has left.
func TestConnectedIsKept(t *testing.T) {
	t.Parallel()
	retention := func(t *testing.T, m *session.Manager, _ session.Record, c *clock) error {
		c.add(2 * time.Hour)
		m.Reap(t.Context())
		return nil
	}
	for name, test := range map[string]struct {
		end func(t *testing.T, m *session.Manager, rec session.Record, c *clock) error
		own bool // by the process that had it, and lives
	}{
		"garbage": {func(t *testing.T, m *session.Manager, rec session.Record, _ *clock) error {
			return m.RemoveAbandoned(t.Context(), rec)
		}, false},
		"retention":      {retention, false},
		"retention, own": {retention, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := sharing{newEngine(t)}
			opts := shared()
			m, other := newManager(t, e, opts), newManager(t, e, opts)
			c, first := newClock(m), m
			if !test.own {
				first = dying(t, e, opts)
			}
			req := testImage()
			req.Retention = time.Hour
			s, _, err := first.Open(t.Context(), runKey, req)
			must(t, err)
			must(t, first.CloseScope(t.Context(), runKey.Scope()))
			if !test.own {
				first.Die()
			}
			secondary, err := other.Connect(t.Context(), s.ID())
			must(t, err)
			err = test.end(t, m, record(t, opts.Store, s.ID()), c)
			if e.count() != 1 || err != nil && !errors.Is(err, backend.ErrExists) {
				t.Fatalf("it was removed: %v", err)
			}
			output(t, secondary, "true")
			must(t, secondary.Close(t.Context()))
			eventually(t, "it goes", func() bool { // its guest may not have noticed yet
				err := test.end(t, m, record(t, opts.Store, s.ID()), c)
				return err == nil && e.count() == 0
			})
		})
	}
}

// TestInterruptedMeanwhile: who resumes a run while its sandbox is being removed but for its workspace waits for that, and has its files.
func TestInterruptedMeanwhile(t *testing.T) {
	t.Parallel()
	e := sharing{newEngine(t)}
	opts := shared()
	s, sweeper, clock := interrupted(t, e, opts, testImage())
	m := newManager(t, e, opts)
	newClock(m).add(4 * time.Minute)
	clock.add(4 * time.Minute)
	going, goOn, swept := make(chan struct{}), make(chan struct{}), make(chan struct{})
	e.setHooks(nil, func(string) error {
		close(going)
		<-goOn
		return nil
	}, nil)
	go func() {
		defer close(swept)
		sweeper.Reap(t.Context())
	}()
	<-going
	opened := make(chan error, 1)
	go func() {
		again, created, err := m.Open(t.Context(), runKey, testImage())
		if err == nil && (created || again.ID() != s.ID()) {
			err = errors.New("it is another sandbox")
		}
		opened <- err
	}()
	var err error
	select {
	case err = <-opened:
		t.Error("Open did not wait")
	case <-time.After(200 * time.Millisecond): // several looks at it
	}
	e.setHooks(nil, nil, nil)
	close(goOn)
	<-swept
	if !t.Failed() {
		err = <-opened
	}
	must(t, err)
	if !e.hasFiles(t, s.ID()) {
		t.Error("its files are gone")
	}
}

// TestGoneMeanwhile: a sandbox that is removed but for its workspace just when somebody asks whether it is there is not taken for gone.
func TestGoneMeanwhile(t *testing.T) {
	t.Parallel()
	e := sharing{newEngine(t)}
	opts := shared()
	store := &afterList{Store: opts.Store}
	late := *opts
	late.Store = store
	_, sweeper, clock := interrupted(t, e, opts, testImage())
	m := newManager(t, e, &late)
	clock.add(4 * time.Minute)
	store.then = func() { sweeper.Reap(t.Context()) }
	if gone, err := m.Gone(t.Context(), runKey.Scope()); err != nil || len(gone) > 0 {
		t.Errorf("Gone = %v, %v", gone, err)
	}
	if e.count() != 0 {
		t.Error("its workspace was not kept")
	}
}

// afterList is a store in which something happens after it was read.
type afterList struct {
	session.Store
	then func()
}

func (s *afterList) List(ctx context.Context, states ...session.RecordState) ([]session.Record, error) {
	recs, err := s.Store.List(ctx, states...)
	s.then()
	return recs, err
}

// TestInterruptedAsItIs: OpenAsIs gets an interrupted run's sandbox as it was, and leaves it to those who ask for what
// it is, with their environment.
func TestInterruptedAsItIs(t *testing.T) {
	t.Parallel()
	e := sharing{newEngine(t)}
	opts := shared()
	full := session.Request{Image: "test:1", Env: map[string]string{"A": "b"}, Limits: backend.Limits{PIDs: 64}}
	s, m, clock := interrupted(t, e, opts, full)
	clock.add(4 * time.Minute)
	m.Reap(t.Context())
	asIs, created, err := m.Open(t.Context(), runKey, session.Request{Image: "test:2", Mode: session.OpenAsIs})
	if err != nil || created || asIs.ID() != s.ID() || asIs.Info().Image != "test:1" || asIs.Info().Limits.PIDs != 64 {
		t.Fatalf("Open = %v, %v, %v, want what there was", asIs, created, err)
	}
	again, _, err := m.Open(t.Context(), runKey, full)
	if err != nil || again != asIs {
		t.Fatalf("Open = %v, %v, want the same session", again, err)
	}
	wantOutput(t, again, "cat file; echo $A", "kept\nb\n")
	full.Image = "test:2"
	var conflict *session.ConflictError
	if _, _, err := m.Open(t.Context(), runKey, full); !errors.As(err, &conflict) || !slices.Equal(conflict.Fields, []string{"image"}) {
		t.Errorf("Open with another image: %v, want a ConflictError", err)
	}
}
