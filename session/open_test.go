//go:build linux

package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/sessiontest"
)

// testImage returns a request for tests in which the image does not matter.
func testImage() session.Request { return session.Request{Image: "test:1"} }

// mustOpen opens a key and fails the test on an error.
func mustOpen(t testing.TB, m *session.Manager, key session.Key) *session.Session {
	t.Helper()
	return openAs(t, m, key, testImage())
}

// mustConnect connects to a sandbox and fails the test on an error.
func mustConnect(t testing.TB, m *session.Manager, id string) *session.Session {
	t.Helper()
	s, err := m.Connect(t.Context(), id)
	must(t, err)
	return s
}

// refuses verifies that a key cannot be opened, and the error.
func refuses(t testing.TB, m *session.Manager, key session.Key, req session.Request, want error) {
	t.Helper()
	if _, _, err := m.Open(t.Context(), key, req); !errors.Is(err, want) {
		t.Errorf("Open(%s, %s) = %v, want %v", key, req.Image, err, want)
	}
}

// differs verifies that a key cannot be opened, because its sandbox differs from the request in the specified fields.
func differs(t testing.TB, m *session.Manager, key session.Key, req session.Request, fields ...string) {
	t.Helper()
	_, _, err := m.Open(t.Context(), key, req)
	conflict, ok := errors.AsType[*session.ConflictError](err)
	if !ok || !slices.Equal(slices.Sorted(slices.Values(conflict.Fields)), fields) {
		t.Errorf("Open(%s, %s) = %v, want a ConflictError about %q", key, req.Image, err, fields)
	}
}

// openAs opens a key with a request and fails the test on an error.
func openAs(t testing.TB, m *session.Manager, key session.Key, req session.Request) *session.Session {
	t.Helper()
	s, _, err := m.Open(t.Context(), key, req)
	if err != nil {
		t.Fatalf("Open(%s): %v", key, err)
	}
	return s
}

// Functions of the conformance suite.
var (
	run        = sessiontest.Run
	output     = sessiontest.Output
	eventually = sessiontest.Eventually
	listed     = sessiontest.State
)

// openKept opens a key and writes the file expected by reopen.
func openKept(t testing.TB, m *session.Manager, key session.Key, req session.Request) *session.Session {
	t.Helper()
	s := openAs(t, m, key, req)
	output(t, s, "echo kept > file")
	return s
}

// wantOutput runs a shell command and verifies its exact output.
func wantOutput(t testing.TB, s *session.Session, command, want string) {
	t.Helper()
	if got := output(t, s, command); got != want {
		t.Errorf("%s: output %q, want %q", command, got, want)
	}
}

// reopen opens a key and verifies that its sandbox has the specified id and the kept file.
func reopen(t testing.TB, m *session.Manager, key session.Key, req session.Request, id string) *session.Session {
	t.Helper()
	s, created, err := m.Open(t.Context(), key, req)
	if err != nil || created || s.ID() != id {
		t.Fatalf("Open = %v, %v, %v, want sandbox %s", s, created, err, id)
	}
	wantOutput(t, s, "cat file", "kept\n")
	return s
}

// opensAnother opens a key and verifies that it gets a new sandbox.
func opensAnother(t testing.TB, m *session.Manager, key session.Key, req session.Request, id string) {
	t.Helper()
	if s, created, err := m.Open(t.Context(), key, req); err != nil || !created || s.ID() == id {
		t.Errorf("Open = %v, %v, %v, want a new sandbox", s, created, err)
	}
}

func TestConcurrentOpensOfOneKey(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	key := session.WorkflowKey("run_1", "default")
	const callers = 100
	ids := make([]string, callers)
	var created atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			s, isNew, err := m.Open(t.Context(), key, testImage())
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = s.ID()
			if isNew {
				created.Add(1)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || !session.ValidID(id) {
			t.Fatalf("ids %v", ids)
		}
	}
	if e.creates.Load() != 1 || e.count() != 1 || created.Load() != 1 {
		t.Errorf("%d creations, %d sandboxes, %d callers created it; want 1 each", e.creates.Load(), e.count(), created.Load())
	}
	s, isNew, err := m.Open(t.Context(), key, testImage())
	if err != nil || isNew || s.ID() != ids[0] {
		t.Errorf("Open again = %v, %v, %v", s, isNew, err)
	}
	wantOutput(t, s, "echo hello", "hello\n")
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	release := make(chan struct{})
	e.setHooks(func(ctx context.Context, spec backend.Spec) error {
		if spec.Key == "workflow:run_1:slow" {
			<-release
		}
		return nil
	}, nil, nil)
	slow := make(chan error, 1)
	go func() {
		_, _, err := m.Open(t.Context(), session.WorkflowKey("run_1", "slow"), testImage())
		slow <- err
	}()
	eventually(t, "the slow creation has begun", func() bool { return e.creates.Load() == 1 })
	for i := range 8 { // these would block forever
		mustOpen(t, m, session.WorkflowKey("run_1", fmt.Sprintf("quick%d", i)))
	}
	close(release)
	must(t, <-slow)
}

// TestLastWaiterLeaves cancels an open at every stage. It verifies that nothing is left behind and that the key can be
// opened again.
func TestLastWaiterLeaves(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{"before create", "after create", "dial"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			store := record.NewMemoryStore()
			m := newManager(t, e, &session.Options{MaxSandboxes: 1, Store: store})
			ctx, cancel := context.WithCancel(t.Context())
			block := func(ctx context.Context) error {
				cancel()
				<-ctx.Done()
				return ctx.Err()
			}
			switch stage {
			case "before create":
				e.setHooks(func(ctx context.Context, _ backend.Spec) error { return block(ctx) }, nil, nil)
			case "after create":
				e.setHooks(func(ctx context.Context, _ backend.Spec) error { _ = block(ctx); return nil }, nil, nil)
			case "dial":
				e.setHooks(nil, nil, func(ctx context.Context, _ string) error { return block(ctx) })
			}
			key := session.WorkflowKey("run_1", "default")
			if _, _, err := m.Open(ctx, key, testImage()); !errors.Is(err, context.Canceled) {
				t.Errorf("Open = %v, want Canceled", err)
			}
			eventually(t, "nothing is left", func() bool { return e.count() == 0 && m.Used() == 0 })
			e.setHooks(nil, nil, nil)
			s := mustOpen(t, m, key)
			wantOutput(t, s, "echo again", "again\n")
			live, err := store.List(t.Context(), record.Creating, record.Ready)
			if err != nil || len(live) != 1 || live[0].ID != s.ID() {
				t.Errorf("live records %v, %v", live, err)
			}
		})
	}
}

func TestFailedOpens(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	key := session.WorkflowKey("run_1", "default")
	for _, want := range []error{backend.ErrImage, backend.ErrUnavailable, backend.ErrUnsupported} {
		e.setHooks(func(context.Context, backend.Spec) error { return fmt.Errorf("engine said: %w", want) }, nil, nil)
		s, created, err := m.Open(t.Context(), key, testImage())
		if !errors.Is(err, want) || s != nil || created {
			t.Errorf("Open = %v, %v, %v, want %v", s, created, err, want)
		}
		if typed, ok := errors.AsType[*backend.Error](err); !ok || typed.Op != "Open" || typed.Backend != "processes" {
			t.Errorf("%v does not name its call", err)
		}
	}
	e.setHooks(nil, nil, func(context.Context, string) error { return backend.ErrUnavailable })
	refuses(t, m, key, testImage(), backend.ErrUnavailable)
	e.setHooks(nil, nil, nil)
	if e.count() != 0 || m.Used() != 0 {
		t.Errorf("%d sandboxes and %d places are left", e.count(), m.Used())
	}
	mustOpen(t, m, key)
}

func TestOpenChecksItsRequest(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	allowed, err := backend.NewImagePolicy("python:3.*", "test:*")
	must(t, err)
	m := newManager(t, e, &session.Options{Images: allowed})
	key := session.WorkflowKey("run_1", "default")
	for _, test := range []struct {
		name string
		key  session.Key
		req  session.Request
		want error
	}{
		{"no image", key, session.Request{}, backend.ErrInvalid},
		{"image with a space", key, session.Request{Image: "a b"}, backend.ErrInvalid},
		{"image that is not allowed", key, session.Request{Image: "docker.io/library/node:20"}, backend.ErrPermission},
		{"root", key, session.Request{Image: "test:1", User: "root"}, backend.ErrPermission},
		{"root in numbers", key, session.Request{Image: "test:1", User: "00:1000"}, backend.ErrPermission},
		{"root's group", key, session.Request{Image: "test:1", User: "1000:0"}, backend.ErrPermission},
		{"user by name", key, session.Request{Image: "test:1", User: "nobody"}, backend.ErrInvalid},
		{"env", key, session.Request{Image: "test:1", Env: map[string]string{"": "x"}}, backend.ErrInvalid},
		{"negative limit", key, session.Request{Image: "test:1", Limits: backend.Limits{PIDs: -1}}, backend.ErrInvalid},
		{"exec timeout", key, session.Request{Image: "test:1", ExecTimeout: time.Hour + time.Second}, backend.ErrInvalid},
		{"retention", key, session.Request{Image: "test:1", Retention: -1}, backend.ErrInvalid},
		{"root mode", key, session.Request{Image: "test:1", Root: 7}, backend.ErrInvalid},
		{"key", session.WorkflowKey("a:b", "c"), testImage(), backend.ErrInvalid},
	} {
		if _, _, err := m.Open(t.Context(), test.key, test.req); !errors.Is(err, test.want) {
			t.Errorf("%s: Open = %v, want %v", test.name, err, test.want)
		}
	}
	if e.creates.Load() != 0 {
		t.Errorf("the engine was asked %d times", e.creates.Load())
	}
	if _, _, err := m.Open(t.Context(), key, session.Request{Image: "docker.io/library/python:3.12"}); err != nil {
		t.Errorf("an allowed image: %v", err)
	}
}

// TestReopen verifies that a request with other values of environment variables conflicts with an open session, and
// that another idle timeout does not.
func TestReopen(t *testing.T) {
	t.Parallel()
	m := newManager(t, newEngine(t), nil)
	key := session.WorkflowKey("run_1", "default")
	with := func(value string) session.Request {
		return session.Request{Image: "test:1", Env: map[string]string{"A": value}, User: "1000", IdleTimeout: time.Minute}
	}
	s := openAs(t, m, key, with("1"))
	differs(t, m, key, with("2"), "env")
	same := with("1")
	same.User, same.Network, same.IdleTimeout, same.ExecTimeout = "1000:1000", backend.NetworkNone, time.Hour, time.Minute
	if again, created, err := m.Open(t.Context(), key, same); err != nil || created || again != s || s.Info().IdleTimeout != time.Hour {
		t.Errorf("Open of the same request = %v, %v, %v, idle timeout %v", again, created, err, s.Info().IdleTimeout)
	}
}

// TestCeiling verifies that limits above the ceiling, and unset limits, become the ceiling's limits.
func TestCeiling(t *testing.T) {
	t.Parallel()
	m := newManager(t, newEngine(t), nil)
	key := session.WorkflowKey("run_1", "default")
	ceiling := backend.Limits{MemoryBytes: 64 << 20, PIDs: 32}
	for _, asked := range []backend.Limits{
		{MemoryBytes: 128 << 20, CPUMillis: 500}, {PIDs: 64, CPUMillis: 500}, {MemoryBytes: 64 << 20, PIDs: 32, CPUMillis: 500},
	} {
		s, _, err := m.Open(t.Context(), key, session.Request{Image: "test:1", Limits: asked, Ceiling: ceiling})
		if err != nil {
			t.Fatalf("%+v: %v", asked, err)
		}
		if diff := cmp.Diff(backend.Limits{MemoryBytes: 64 << 20, PIDs: 32, CPUMillis: 500}, s.Info().Limits); diff != "" {
			t.Errorf("%+v (-want +got)\n%s", asked, diff)
		}
	}
	low := session.Request{Image: "test:1", Limits: backend.Limits{PIDs: 8, MemoryBytes: 32 << 20}, Ceiling: ceiling}
	if s, _, err := m.Open(t.Context(), session.WorkflowKey("run_1", "low"), low); err != nil || s.Info().Limits != low.Limits {
		t.Errorf("below the ceiling: %v", err)
	}
	low.Limits.PIDs = -1
	refuses(t, m, key, low, backend.ErrInvalid)
}

func TestRequestHash(t *testing.T) {
	t.Parallel()
	m := newManager(t, newEngine(t), nil)
	hash := func(req session.Request) string {
		t.Helper()
		h, err := m.Hash(req)
		must(t, err)
		return h
	}
	base := session.Request{Image: "test:1", Env: map[string]string{"TOKEN": "a"}}
	secret := session.Request{Image: "test:1", Env: map[string]string{"TOKEN": "b"}, User: "1000", IdleTimeout: time.Hour}
	if hash(base) != hash(secret) {
		t.Error("the public hash depends on the value of a variable")
	}
	for _, other := range []session.Request{
		{Image: "test:2", Env: base.Env}, {Image: "test:1"}, {Image: "test:1", Env: base.Env, Limits: backend.Limits{PIDs: 1}},
	} {
		if hash(base) == hash(other) {
			t.Errorf("%+v has the hash of %+v", other, base)
		}
	}
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	const places, callers = 5, 200
	e := newEngine(t)
	m := newManager(t, e, &session.Options{MaxSandboxes: places})
	var opened, full atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			_, _, err := m.Open(t.Context(), session.WorkflowKey(fmt.Sprintf("run_%d", i), "default"), testImage())
			switch {
			case err == nil:
				opened.Add(1)
			case errors.Is(err, backend.ErrCapacity) && strings.Contains(err.Error(), "5"):
				full.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if opened.Load() != places || full.Load() != callers-places || e.creates.Load() != places || e.count() != places {
		t.Errorf("%d opened, %d refused, %d creations, %d sandboxes", opened.Load(), full.Load(), e.creates.Load(), e.count())
	}
	// A place that was freed by a failed creation or a close can be used again.
	for _, info := range mustList(t, m)[:1] {
		must(t, m.CloseSession(t.Context(), info.Key, session.CloseOptions{}))
	}
	e.setHooks(func(context.Context, backend.Spec) error { return backend.ErrImage }, nil, nil)
	refuses(t, m, session.UserKey("a"), testImage(), backend.ErrImage)
	e.setHooks(nil, nil, nil)
	mustOpen(t, m, session.UserKey("b"))
	refuses(t, m, session.UserKey("c"), testImage(), backend.ErrCapacity)
}

// TestFailedCleanup verifies that the record of a refused creation is kept to find the objects that the driver could
// not remove.
func TestFailedCleanup(t *testing.T) {
	t.Parallel()
	for _, left := range []error{backend.ErrUnavailable, context.DeadlineExceeded, nil} {
		e, store := newEngine(t), record.NewMemoryStore()
		m := newManager(t, e, &session.Options{Store: store, ReapEvery: -1})
		e.setHooks(func(context.Context, backend.Spec) error { return errors.Join(backend.ErrImage, left) }, nil, nil)
		refuses(t, m, session.UserKey("a"), testImage(), backend.ErrImage)
		if list, err := store.List(t.Context(), record.Removing); err != nil || (len(list) == 1) != (left != nil) {
			t.Errorf("%v: %d records, %v", left, len(list), err)
		}
	}
}

// mustList lists the sandboxes of a manager.
func mustList(t testing.TB, m *session.Manager) []session.Info {
	t.Helper()
	list, err := m.List(t.Context())
	must(t, err)
	return list
}

func TestPrepareComesBeforeAnybodyGetsTheSandbox(t *testing.T) {
	t.Parallel()
	m := newManager(t, newEngine(t), nil)
	var prepared atomic.Int64
	req := testImage()
	req.Prepare = func(ctx context.Context, s *session.Session) error {
		prepared.Add(1)
		_, err := s.WriteFile(ctx, "ready.txt", strings.NewReader("ready"), sandbox.WriteFileOptions{})
		return err
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			s, _, err := m.Open(t.Context(), session.WorkflowKey("run_1", "default"), req)
			if err != nil {
				t.Error(err)
				return
			}
			if data, _, err := s.ReadFileBytes(t.Context(), "ready.txt", sandbox.ReadFileOptions{}); err != nil || string(data) != "ready" {
				t.Errorf("ready.txt: %q, %v", data, err)
			}
		})
	}
	wg.Wait()
	if n := prepared.Load(); n != 1 {
		t.Errorf("prepared %d times", n)
	}
}

func TestPrepareThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	broken := errors.New("no such directory")
	req := testImage()
	req.Prepare = func(context.Context, *session.Session) error { return broken }
	key := session.WorkflowKey("run_1", "default")
	refuses(t, m, key, req, broken)
	eventually(t, "the sandbox is removed", func() bool { return e.count() == 0 })
	mustOpen(t, m, key) // the key is free again
}

// notedStore counts the updates to ready records.
type notedStore struct {
	record.Store
	ready atomic.Int64
}

func (n *notedStore) Update(ctx context.Context, rec record.Record) error {
	if rec.State == record.Ready {
		n.ready.Add(1)
	}
	return n.Store.Update(ctx, rec)
}

// TestLostWhilePrepared verifies that a sandbox which dies while it is prepared leaves no files to the next opener.
func TestLostWhilePrepared(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"noticed": backend.ErrLost, "unnoticed": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			store := &notedStore{Store: opts.Store}
			opts.Store = store
			m, id := newManager(t, e, opts), ""
			req := testImage()
			req.Prepare = func(_ context.Context, s *session.Session) error {
				id = s.ID()
				output(t, s, "echo half > file")
				e.remove(s.Info().EngineID)
				eventually(t, "it is lost", func() bool { return s.Info().State == session.StateLost })
				return failure
			}
			refuses(t, m, runKey, req, backend.ErrLost)
			if most := map[error]int64{nil: 1, backend.ErrLost: 0}[failure]; e.hasFiles(t, id) || store.ready.Load() > most {
				t.Errorf("its files are left: %v; it was ready %d times", e.hasFiles(t, id), store.ready.Load())
			}
			opensAnother(t, m, runKey, testImage(), id)
		})
	}
}

// TestLostWhileAdopted verifies that a sandbox which dies while it is adopted is there for the next opener.
func TestLostWhileAdopted(t *testing.T) {
	t.Parallel()
	e, opts, key := newEngine(t), shared(), session.UserKey("lab")
	s := left(t, e, opts, key, record.IdleRemove)
	m := newManager(t, e, opts)
	req := testImage()
	req.OnAdopt = func(_ context.Context, s *session.Session) error {
		e.remove(s.Info().EngineID)
		eventually(t, "it is lost", func() bool { return s.Info().State == session.StateLost })
		return nil
	}
	refuses(t, m, key, req, backend.ErrLost)
	reopen(t, m, key, testImage(), s.ID())
}

// TestWaitIsLogged verifies that the wait for another process that creates a named sandbox is logged once. Closing a
// connection is not logged.
func TestWaitIsLogged(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	var log logBuffer
	opts := shared()
	patient := *opts
	patient.Logger = log.logger()
	first, second := newManager(t, e, opts), newManager(t, e, &patient)
	const words = "waiting for another process to open or remove the sandbox"
	going, failed := make(chan struct{}), make(chan error, 1)
	e.setHooks(func(_ context.Context, spec backend.Spec) error {
		if spec.Image != "test:first" {
			return nil
		}
		close(going)
		for !strings.Contains(log.String(), words) && t.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		return backend.ErrImage
	}, nil, nil)
	key := session.UserKey("lab")
	go func() {
		_, _, err := first.Open(t.Context(), key, session.Request{Image: "test:first"})
		failed <- err
	}()
	<-going
	s := mustOpen(t, second, key)
	if err := <-failed; !errors.Is(err, backend.ErrImage) {
		t.Errorf("Open: %v, want ErrImage", err)
	}
	v := mustConnect(t, newManager(t, e, &patient), s.ID())
	must(t, v.Close(t.Context()))
	if n := strings.Count(log.String(), words); n != 1 || strings.Contains(log.String(), "ending a sandbox") {
		t.Errorf("logged %d times: %s", n, log.String())
	}
}

// TestRemovedWhileOpened verifies the error of an Open whose sandbox was removed by another process before the
// connection.
func TestRemovedWhileOpened(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	e.setHooks(nil, nil, func(_ context.Context, id string) error {
		e.remove(id)
		return nil
	})
	_, _, err := m.Open(t.Context(), session.UserKey("lab"), testImage())
	if !errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrNotFound) || !strings.Contains(err.Error(), "it was removed while it was being created") {
		t.Errorf("Open: %v, want ErrLost", err)
	}
	e.holds(t, 0)
}
