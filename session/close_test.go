//go:build linux

package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestOpenCloseStorm opens and closes one key concurrently. It verifies that a session works or returns ErrClosed, and
// that no id is reused.
func TestOpenCloseStorm(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	key := session.WorkflowKey("run_1", "default")
	var mu sync.Mutex // guards closed
	closed := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 6 {
				mu.Lock()
				known := maps.Clone(closed)
				mu.Unlock()
				s, _, err := m.Open(t.Context(), key, testImage())
				if errors.Is(err, backend.ErrClosed) {
					continue // closed during its creation
				}
				if err != nil {
					t.Error(err)
					return
				}
				if known[s.ID()] {
					t.Errorf("%s was handed out after its close had returned", s.ID())
				}
				if _, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"true"}}); err != nil && !errors.Is(err, backend.ErrClosed) {
					t.Errorf("Exec: %v", err)
				}
				if i%2 == 0 {
					if err := s.Close(t.Context()); err != nil {
						t.Error(err)
					}
					mu.Lock()
					closed[s.ID()] = true
					mu.Unlock()
				} else if err := m.CloseSession(t.Context(), key, session.CloseOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	must(t, m.CloseSession(t.Context(), key, session.CloseOptions{}))
	if e.count() != 0 || m.Used() != 0 || e.creates.Load() == 0 {
		t.Errorf("%d sandboxes and %d places left after %d creations", e.count(), m.Used(), e.creates.Load())
	}
}

// TestCloseWhileReopened verifies that closing a key removes a sandbox that another caller is opening again. The closed
// sandbox is not returned to the next opener, not even its files.
func TestCloseWhileReopened(t *testing.T) {
	t.Parallel()
	key := session.UserKey("lab")
	for how, closing := range map[string]func(*session.Manager) error{
		"session": func(m *session.Manager) error {
			return m.CloseSession(context.Background(), key, session.CloseOptions{})
		},
		"scope":   func(m *session.Manager) error { return m.CloseScope(context.Background(), key.Scope()) },
		"manager": func(m *session.Manager) error { return m.Close(context.Background()) },
	} {
		for _, why := range []string{"killed", "removed", "restarted", "rebuilt"} {
			t.Run(how+" "+why, func(t *testing.T) {
				t.Parallel()
				e, opts := newEngine(t), shared()
				m := newManager(t, e, opts)
				s := openKept(t, m, key, testImage())
				closed := make(chan error, 1)
				meanwhile := func(ctx context.Context) error {
					go func() { closed <- closing(m) }()
					<-ctx.Done()
					return nil
				}
				req := testImage()
				switch why {
				case "rebuilt":
					req = session.Request{Image: "test:2", Mode: session.OpenRebuild}
				default:
					ruins[why](e, s.Info().EngineID)
					eventually(t, "it is lost", func() bool { return s.Info().State == session.StateLost })
				}
				if why == "restarted" {
					req.OnAdopt = func(ctx context.Context, _ *session.Session) error { return meanwhile(ctx) }
				} else {
					e.setHooks(func(ctx context.Context, _ backend.Spec) error { return meanwhile(ctx) }, nil, nil)
				}
				refuses(t, m, key, req, backend.ErrClosed)
				must(t, <-closed)
				e.setHooks(nil, nil, nil)
				if e.count() != 0 || e.hasFiles(t, s.ID()) || m.Used() != 0 {
					t.Errorf("%d sandboxes and %d places are left, files: %v", e.count(), m.Used(), e.hasFiles(t, s.ID()))
				}
				opensAnother(t, newManager(t, e, opts), key, testImage(), s.ID())
			})
		}
	}
}

// slowReader returns data at intervals and never ends.
type slowReader struct{ ctx context.Context }

func (r slowReader) Read(p []byte) (int, error) {
	select {
	case <-time.After(20 * time.Millisecond):
		return copy(p, "x"), nil
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
}

// TestCloseEndsCalls verifies that closing a session ends pending calls of every kind.
func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	background, err := s.Start(t.Context(), sandbox.ExecRequest{Command: "sleep 100"})
	must(t, err)
	readers, stop := context.WithCancel(t.Context())
	defer stop()
	calls := map[string]func(context.Context) error{
		"Exec": func(ctx context.Context) error {
			_, err := s.Exec(ctx, sandbox.ExecRequest{Command: "sleep 100"})
			return err
		},
		"Stream": func(ctx context.Context) error {
			_, err := s.Stream(ctx, sandbox.ExecRequest{Command: "cat"}, sandbox.Streams{Stdin: slowReader{readers}, Stdout: io.Discard})
			return err
		},
		"Read": func(ctx context.Context) error {
			_, err := background.Read(ctx, sandbox.ReadRequest{Wait: time.Minute})
			return err
		},
		"Wait": func(ctx context.Context) error {
			_, err := background.Wait(ctx, -1)
			return err
		},
		"WriteFile": func(ctx context.Context) error {
			_, err := s.WriteFile(ctx, "endless", slowReader{readers}, sandbox.WriteFileOptions{})
			return err
		},
	}
	var pending sync.WaitGroup
	for name, call := range calls {
		pending.Go(func() {
			if err := call(t.Context()); !errors.Is(err, backend.ErrClosed) || errors.Is(err, context.Canceled) {
				t.Errorf("%s = %v, want ErrClosed", name, err)
			}
		})
	}
	eventually(t, "all calls have started", func() bool { return s.Active() == len(calls) })
	must(t, s.Close(t.Context()))
	pending.Wait()
	e.holds(t, 0)
	if _, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"true"}}); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Exec after Close = %v", err)
	}
	if _, err := s.StatFile(t.Context(), "."); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("StatFile after Close = %v", err)
	}
	if s.Info().State != session.StateClosed {
		t.Errorf("state %s", s.Info().State)
	}
}

func TestCloseIsIdempotent(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	key := session.WorkflowKey("run_1", "default")
	must(t, m.CloseSession(t.Context(), key, session.CloseOptions{})) // of an unknown key
	s := mustOpen(t, m, key)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := s.Close(cancelled); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	eventually(t, "a cancelled context does not keep the sandbox", func() bool { return e.count() == 0 })
	for range 2 {
		must(t, s.Close(t.Context()))
		must(t, m.CloseSession(t.Context(), key, session.CloseOptions{}))
		must(t, m.CloseScope(t.Context(), key.Scope()))
	}
	if e.removes.Load() != 1 {
		t.Errorf("the engine removed %d times", e.removes.Load())
	}
	if err := m.Remove(t.Context(), s.ID(), true); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("removing a closed id: %v", err)
	}
}

// TestPruneWithoutReaper verifies that a manager without a reaper deletes old records.
func TestPruneWithoutReaper(t *testing.T) {
	t.Parallel()
	opts := shared() // without a reaper
	m := newManager(t, newEngine(t), opts)
	must(t, opts.Store.Insert(t.Context(), record.Record{ID: "old", Key: runKey, State: record.Closed}))
	var scopes []record.Scope
	for range 100 {
		scopes = append(scopes, session.WorkflowKey(session.NewRunID(), "x").Scope())
	}
	for i, scope := range slices.Insert(scopes, 99, scopes[98], session.UserKey("x").Scope()) { // no more runs
		must(t, m.CloseScope(t.Context(), scope))
		if recs, err := opts.Store.List(t.Context()); err != nil || (len(recs) > 0) != (i < 101) {
			t.Errorf("after %d scopes: %+v, %v", i+1, recs, err)
		}
	}
}

// TestCloseScope verifies that closing a run ends its pending opens and does not affect other runs.
func TestCloseScope(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	other := mustOpen(t, m, session.WorkflowKey("run_2", "default"))
	lookalike := mustOpen(t, m, record.AgentKey("run_1", "default"))
	scope := session.Run{Namespace: record.NamespaceWorkflow, ID: "run_1"}.Scope()
	for _, name := range []string{"a", "b"} {
		mustOpen(t, m, scope.Key(name))
	}
	block := make(chan struct{})
	var blocked atomic.Int64
	e.setHooks(func(ctx context.Context, spec backend.Spec) error {
		if !strings.HasPrefix(spec.Key, "workflow:run_1:") {
			return nil
		}
		blocked.Add(1)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-block:
			return nil
		}
	}, nil, nil)
	opening := make(chan error, 2)
	for _, name := range []string{"c", "d"} {
		go func() {
			_, _, err := m.Open(t.Context(), scope.Key(name), testImage())
			opening <- err
		}()
	}
	eventually(t, "two creations have started", func() bool { return blocked.Load() == 2 })
	if got := len(m.InScope(scope)); got != 2 {
		t.Errorf("%d sessions in the scope, want 2", got)
	}
	must(t, m.CloseScope(t.Context(), scope))
	close(block)
	for range 2 {
		if err := <-opening; !errors.Is(err, backend.ErrClosed) {
			t.Errorf("an unfinished open = %v, want ErrClosed", err)
		}
	}
	refuses(t, m, scope.Key("a"), testImage(), backend.ErrClosed)
	if len(m.InScope(scope)) != 0 || e.count() != 2 || m.Used() != 2 {
		t.Errorf("%d in scope, %d sandboxes, %d places", len(m.InScope(scope)), e.count(), m.Used())
	}
	for _, s := range []*session.Session{other, lookalike} {
		wantOutput(t, s, "echo alive", "alive\n")
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m, clock := newTimed(t, e, &session.Options{ReapEvery: -1})
	req := testImage()
	req.Retention = time.Hour
	key := session.WorkflowKey("run_1", "default")
	s := openAs(t, m, key, req)
	must(t, m.CloseScope(t.Context(), key.Scope()))
	if _, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"true"}}); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("a retained sandbox took a call: %v", err)
	}
	clock.add(59 * time.Minute)
	m.Reap(t.Context())
	e.holds(t, 1)
	if list := mustList(t, m); len(list) != 1 || list[0].ID != s.ID() || list[0].State != session.StateKept {
		t.Errorf("list %+v", list)
	}
	eventually(t, "it is removed", func() bool { // the guest may notice late that its host has gone
		clock.add(time.Hour)
		m.Reap(t.Context())
		return e.count() == 0 && m.Used() == 0 && m.Leftovers() == 0
	})
}

// pairedStore returns a closed record only after two callers have read it.
type pairedStore struct {
	record.Store
	reads atomic.Int32
	both  chan struct{}
}

func (p *pairedStore) Get(ctx context.Context, id string) (record.Record, error) {
	rec, err := p.Store.Get(ctx, id)
	if err == nil && rec.State == record.Closed {
		if p.reads.Add(1) == 2 {
			close(p.both)
		}
		<-p.both
	}
	return rec, err
}

// TestFailedRemovalIsRetried verifies that a removal is retried if the engine was unavailable during Close.
func TestFailedRemovalIsRetried(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	store := &pairedStore{Store: record.NewMemoryStore(), both: make(chan struct{})}
	m := newManager(t, e, &session.Options{ReapEvery: -1, MaxSandboxes: 1, Store: store})
	key := session.WorkflowKey("run_1", "default")
	s := mustOpen(t, m, key)
	e.setHooks(nil, func(string) error { return fmt.Errorf("%w: engine is away", backend.ErrUnavailable) }, nil)
	if err := s.Close(t.Context()); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Close = %v", err)
	}
	refuses(t, m, key, testImage(), backend.ErrCapacity)
	if rec, err := store.Get(t.Context(), s.ID()); err != nil || rec.State != record.Removing {
		t.Errorf("record %+v, %v", rec, err)
	}
	m.Reap(t.Context())
	if e.count() != 1 || m.Leftovers() != 1 {
		t.Errorf("%d sandboxes, %d leftovers", e.count(), m.Leftovers())
	}
	e.setHooks(nil, nil, nil)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { m.Reap(t.Context()) })
	}
	both.Wait()
	if e.count() != 0 || m.Leftovers() != 0 || m.Used() != 0 {
		t.Errorf("%d sandboxes, %d leftovers, %d places", e.count(), m.Leftovers(), m.Used())
	}
	if rec, err := store.Get(t.Context(), s.ID()); err != nil || rec.State != record.Closed {
		t.Errorf("record %+v, %v", rec, err)
	}
	mustOpen(t, m, key)
}

func TestManagerClose(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m, err := session.NewManager(e, nil)
	must(t, err)
	s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	mustOpen(t, m, session.UserKey("lab"))
	e.setHooks(func(ctx context.Context, _ backend.Spec) error { <-ctx.Done(); return ctx.Err() }, nil, nil)
	opening := make(chan error, 1)
	go func() {
		_, _, err := m.Open(t.Context(), session.WorkflowKey("run_2", "default"), testImage())
		opening <- err
	}()
	eventually(t, "a creation has started", func() bool { return e.creates.Load() == 3 })
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := m.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := <-opening; !errors.Is(err, backend.ErrClosed) {
		t.Errorf("the unfinished open = %v", err)
	}
	e.holds(t, 0)
	refuses(t, m, session.UserKey("x"), testImage(), backend.ErrClosed)
	if _, err := m.Connect(t.Context(), s.ID()); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Connect = %v", err)
	}
	if _, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"true"}}); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Exec = %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for _, opts := range []*session.Options{
		{Instance: "a:b"}, {Instance: strings.Repeat("x", 200)}, {MaxSandboxes: -1}, {MaxFileBytes: -1},
		{Labels: map[string]string{"dev.workcell.instance": "other"}},
	} {
		if _, err := session.NewManager(e, opts); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("NewManager(%+v) = %v, want ErrInvalid", opts, err)
		}
	}
	if _, err := session.NewManager(nil, nil); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("NewManager(nil) = %v", err)
	}
}
