//go:build linux

package session_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// clock is a manager's clock for tests.
type clock struct {
	mu  sync.Mutex // guards now
	now time.Time
}

func newClock(m *session.Manager) *clock {
	c := &clock{now: time.Now()}
	m.SetClock(func() time.Time {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.now
	})
	return c
}

// newTimed creates a manager like newManager, with a clock.
func newTimed(t testing.TB, b backend.SandboxBackend, opts *session.Options) (*session.Manager, *clock) {
	t.Helper()
	m := newManager(t, b, opts)
	return m, newClock(m)
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestIdleSessionsAreReaped(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	store := record.NewMemoryStore()
	m, clock := newTimed(t, e, &session.Options{ReapEvery: -1, IdleTimeout: 10 * time.Minute, Store: store})
	idle := mustOpen(t, m, session.WorkflowKey("run_1", "idle"))
	used := mustOpen(t, m, session.WorkflowKey("run_1", "used"))
	touched := mustOpen(t, m, session.WorkflowKey("run_1", "touched"))
	never := openAs(t, m, session.WorkflowKey("run_1", "never"), session.Request{Image: "test:1", IdleTimeout: -1})
	clock.add(9 * time.Minute)
	m.Reap(t.Context())
	e.holds(t, 4)
	output(t, used, "true")
	touched.Touch()
	clock.add(2 * time.Minute)
	m.Reap(t.Context())
	if _, err := m.Lookup(t.Context(), touched.Key().Scope(), touched.ID()); err != nil {
		t.Errorf("Lookup of a touched one = %v", err)
	}
	must(t, touched.Close(t.Context()))
	touched.Touch() // has no effect
	if _, err := m.Lookup(t.Context(), idle.Key().Scope(), idle.ID()); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Lookup of a reaped id = %v, want ErrClosed", err)
	}
	for _, s := range []*session.Session{used, never} {
		wantOutput(t, s, "echo alive", "alive\n")
	}
	rec, err := store.Get(t.Context(), used.ID())
	if err != nil || rec.State != record.Ready || rec.Expires.Sub(rec.LastUsed) != 10*time.Minute {
		t.Errorf("record %+v, %v", rec, err)
	}
	fresh, created, err := m.Open(t.Context(), idle.Key(), testImage())
	if err != nil || !created || fresh.ID() == idle.ID() {
		t.Errorf("Open of a reaped key = %v, %v, %v", fresh, created, err)
	}
	clock.add(240 * time.Hour)
	m.Reap(t.Context())
	if gone, _, err := m.Gone(t.Context(), used.Key().Scope()); err != nil || len(gone) != 2 {
		t.Errorf("gone are %v, %v, want idle and used", gone, err)
	}
	if e.count() != 1 || never.Info().State != session.StateReady {
		t.Errorf("%d sandboxes, the one without idle timeout is %s", e.count(), never.Info().State)
	}
	// Closed ids are remembered for a while and then deleted.
	clock.add(31 * 24 * time.Hour)
	m.Reap(t.Context())
	if recs, err := store.List(t.Context(), record.Closed); err != nil || len(recs) != 0 {
		t.Errorf("%d closed records, %v", len(recs), err)
	}
}

// TestKeepInUse verifies that the sandboxes of a scope have no idle timeout until the last caller releases the scope.
func TestKeepInUse(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m, clock := newTimed(t, e, &session.Options{ReapEvery: -1, IdleTimeout: 10 * time.Minute})
	s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	mustOpen(t, m, session.WorkflowKey("run_2", "default"))
	clock.add(9 * time.Minute)
	release, other := m.KeepInUse(s.Key().Scope()), m.KeepInUse(s.Key().Scope())
	mustOpen(t, m, session.WorkflowKey("run_1", "later"))
	for _, then := range []func(){func() {}, release, release, other} {
		clock.add(time.Hour)
		m.Reap(t.Context())
		e.holds(t, 2)
		then()
	}
	clock.add(9 * time.Minute)
	m.Reap(t.Context())
	e.holds(t, 2)
	clock.add(2 * time.Minute)
	m.Reap(t.Context())
	e.holds(t, 0)
}

// TestBusySessionsAreNotReaped verifies that running work of every kind prevents the idle timeout.
func TestBusySessionsAreNotReaped(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]func(ctx context.Context, s *session.Session) error{
		"exec": func(ctx context.Context, s *session.Session) error {
			_, err := s.Exec(ctx, sandbox.ExecRequest{Command: "while [ ! -e stop ]; do sleep 0.05; done"})
			return err
		},
		"stream": func(ctx context.Context, s *session.Session) error {
			r, w := io.Pipe()
			go func() {
				for ctx.Err() == nil {
					if s.Active() > 0 { // the stream is running; without it, this StatFile would count as the use
						if _, err := s.StatFile(ctx, "stop"); err == nil {
							break
						}
					}
					time.Sleep(20 * time.Millisecond)
				}
				w.Close()
			}()
			_, err := s.Stream(ctx, sandbox.ExecRequest{Command: "cat"}, sandbox.Streams{Stdin: r})
			return err
		},
		"background": func(ctx context.Context, s *session.Session) error {
			_, err := s.Exec(ctx, sandbox.ExecRequest{Command: "while [ ! -e stop ]; do sleep 0.05; done", Background: true})
			return err
		},
		"background, left by a command": func(ctx context.Context, s *session.Session) error {
			res, err := s.Exec(ctx, sandbox.ExecRequest{Command: background})
			if err == nil && !res.Leaked {
				err = errors.New("the result does not show what was left")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			m, clock := newTimed(t, e, &session.Options{ReapEvery: -1, IdleTimeout: time.Minute})
			s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
			done := make(chan error, 1)
			go func() { done <- work(t.Context(), s) }()
			if strings.HasPrefix(name, "background") {
				must(t, <-done)
				done <- nil
			} else {
				eventually(t, "work has started", func() bool { return s.Active() > 0 })
			}
			for range 5 {
				clock.add(time.Hour)
				m.Reap(t.Context())
			}
			if s.Info().State != session.StateReady || e.count() != 1 {
				t.Fatalf("a busy session was reaped: %s", s.Info().State)
			}
			output(t, s, "touch stop")
			must(t, <-done)
			eventually(t, "the session is reaped once it is idle", func() bool {
				clock.add(time.Hour)
				m.Reap(t.Context())
				return e.count() == 0
			})
		})
	}
}

// TestReaperAgainstStarts runs the reaper concurrently with new commands. It verifies that a command runs or returns
// ErrClosed, and that the reaper never closes a session with a running command.
func TestReaperAgainstStarts(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, &session.Options{ReapEvery: -1, IdleTimeout: time.Nanosecond})
	key := session.WorkflowKey("run_1", "default")
	ctx, stop := context.WithCancel(t.Context())
	var reaping, working sync.WaitGroup
	reaping.Go(func() {
		for ctx.Err() == nil {
			m.Reap(ctx)
		}
	})
	for range 4 {
		working.Go(func() {
			for range 25 {
				s, _, err := m.Open(ctx, key, testImage())
				if err != nil {
					t.Error(err)
					return
				}
				res, err := s.Exec(ctx, sandbox.ExecRequest{Command: "sleep 0.01; echo done"})
				switch {
				case errors.Is(err, backend.ErrClosed): // reaped between the open and the command
				case err != nil || string(res.Stdout.Bytes()) != "done\n":
					t.Errorf("a command was cut short: %+v, %v", res, err)
				}
			}
		})
	}
	working.Wait()
	stop()
	reaping.Wait()
}

// TestReapLoop verifies that the manager's goroutine reaps sessions.
func TestReapLoop(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, &session.Options{ReapEvery: 10 * time.Millisecond, IdleTimeout: time.Millisecond})
	mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	eventually(t, "the idle session is gone", func() bool { return e.count() == 0 && m.Used() == 0 })
}

// TestLateCreation verifies that a sandbox is removed if a slow engine creates it after all callers were canceled.
func TestLateCreation(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, &session.Options{ReapEvery: -1})
	var asked backend.Spec
	e.setHooks(func(_ context.Context, spec backend.Spec) error {
		asked = spec
		return backend.ErrUnavailable
	}, nil, nil)
	refuses(t, m, session.WorkflowKey("run_1", "default"), testImage(), backend.ErrUnavailable)
	m.Reap(t.Context())
	e.setHooks(nil, nil, nil)
	_, err := e.Create(t.Context(), asked)
	must(t, err)
	m.Reap(t.Context())
	e.holds(t, 0)
}

// setClock returns a time as after a change of the system clock: the wall time differs, but the monotonic reading does
// not. The standard library cannot create such a time, so setClock changes the seconds in memory.
func setClock(t time.Time, by time.Duration) time.Time {
	const nanosecondBits = 30
	*(*uint64)(unsafe.Pointer(&t)) += uint64(by/time.Second) << nanosecondBits
	return t
}

// TestClockJumps changes the clock while two processes have sessions. It verifies that no session expires because of
// the change, in either process, and that sessions do expire after the real time has passed.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	now := time.Now()
	if later := setClock(now, time.Hour); later.Sub(now) != 0 || later.Round(0).Sub(now.Round(0)) != time.Hour {
		t.Fatal("times are made in another way than this test knows")
	}
	e, opts := newEngine(t), shared()
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
	jump.Store(int64(-time.Hour)) // setting the clock back does not keep sandboxes
	passed.Store(int64(11 * time.Minute))
	for _, m := range managers {
		m.Reap(t.Context())
	}
	e.holds(t, 0)
}
