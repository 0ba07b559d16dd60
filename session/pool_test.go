//go:build linux

package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/sessiontest"
)

// pictured is an engine that knows image IDs.
type pictured struct {
	*engine
	id      *atomic.Value
	mounted string
}

func newPictured(t testing.TB) pictured {
	e := pictured{newEngine(t), &atomic.Value{}, t.TempDir()}
	e.id.Store("sha256:1")
	return e
}

func (e pictured) ImageID(context.Context, string) (string, error) { return e.id.Load().(string), nil }

func (e pictured) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	info, err := e.engine.Create(ctx, spec)
	info.ImageID = e.id.Load().(string)
	return info, err
}

// poolOptions returns options with n pooled sandboxes for testImage.
func poolOptions(n int) *session.Options {
	o := shared()
	o.Pool = []session.PoolSpec{{Request: testImage(), Size: n}}
	return o
}

// awaitPool waits until n sandboxes are pooled and returns their ids.
var awaitPool = sessiontest.FullPool

// TestPool runs the conformance suite's pool tests with local processes.
func TestPool(t *testing.T) {
	t.Parallel()
	sessiontest.Pool(t, newPictured(t), "shared", testImage())
}

// without returns the options of another process of the instance that has no pool.
func without(o *session.Options) *session.Options {
	other := *o
	other.Pool = nil
	return &other
}

// TestPoolKinds verifies that a request gets no pooled sandbox if it differs in a field that is fixed at creation.
func TestPoolKinds(t *testing.T) {
	t.Parallel()
	e := newPictured(t)
	m := newManager(t, e, poolOptions(1))
	awaitPool(t, m, 1)
	for name, change := range map[string]func(*session.Request){
		"image":   func(r *session.Request) { r.Image = "other:1" },
		"user":    func(r *session.Request) { r.User = "1001" },
		"root":    func(r *session.Request) { r.Root = backend.RootWritable },
		"limits":  func(r *session.Request) { r.Limits.PIDs = 99 },
		"network": func(r *session.Request) { r.Network = backend.NetworkBridge },
		"runtime": func(r *session.Request) { r.OCIRuntime = "crun" },
		"pull":    func(r *session.Request) { r.Pull = backend.PullAlways },
	} {
		req := testImage()
		change(&req)
		ready := awaitPool(t, m, 1)
		s, created, err := m.Open(t.Context(), record.AgentKey(name, "default"), req)
		must(t, err)
		if !created || slices.Contains(ready, s.ID()) {
			t.Errorf("another %s: got %s, ready was %v", name, s.ID(), ready)
		}
	}
	for name, spec := range map[string]session.PoolSpec{
		"no size":   {Request: testImage()},
		"no image":  {Size: 1},
		"variables": {Request: session.Request{Image: "test:1", Env: map[string]string{"A": "b"}}, Size: 1},
		"root user": {Request: session.Request{Image: "test:1", User: "root"}, Size: 1},
	} {
		if _, err := session.NewManager(e, &session.Options{Pool: []session.PoolSpec{spec}}); err == nil {
			t.Errorf("a pool with %s", name)
		}
	}
}

// TestPoolPlaces verifies that pooled sandboxes count against MaxSandboxes and are removed to make room for opened
// ones.
func TestPoolPlaces(t *testing.T) {
	t.Parallel()
	e := newPictured(t)
	opts := poolOptions(3)
	opts.MaxSandboxes = 2
	m := newManager(t, e, opts)
	awaitPool(t, m, 2)
	most := atomic.Int64{}
	e.setHooks(func(context.Context, backend.Spec) error {
		most.Store(max(most.Load(), int64(e.count()+1)))
		return nil
	}, nil, nil)
	other := testImage()
	other.User = "1001"
	a := openAs(t, m, record.AgentKey("a", "default"), other)
	b := mustOpen(t, m, record.AgentKey("b", "default"))
	if _, _, err := m.Open(t.Context(), record.AgentKey("c", "default"), testImage()); !errors.Is(err,
		backend.ErrCapacity) {
		t.Errorf("a third: %v, want ErrCapacity", err)
	}
	if m.Used() != 2 || most.Load() > 2 {
		t.Errorf("%d places are taken, there were up to %d sandboxes", m.Used(), most.Load())
	}
	must(t, a.Discard(t.Context()))
	c := mustOpen(t, m, record.AgentKey("c", "default")) // after the other sandbox is removed
	must(t, errors.Join(b.Close(t.Context()), c.Close(t.Context())))
	awaitPool(t, m, 2)
}

// TestPoolUnfit verifies that a pooled sandbox is removed if its image has changed or if it has died.
func TestPoolUnfit(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(e pictured){
		"image":    func(e pictured) { e.id.Store("sha256:2") },
		"no image": func(e pictured) { e.id.Store("") },
		"killed":   func(e pictured) { e.all()[0].murder() },
		"removed":  func(e pictured) { e.remove(e.all()[0].info.ID) },
		"mounts": func(e pictured) {
			must(t, os.Rename(e.mounted, e.mounted+".old"))
			must(t, os.Mkdir(e.mounted, 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newPictured(t)
			opts := poolOptions(1)
			opts.Defaults.Mounts = []backend.Mount{{Source: e.mounted, Target: "/data"}}
			m := newManager(t, e, opts)
			old := awaitPool(t, m, 1)[0]
			spoil(e)
			s := mustOpen(t, m, record.AgentKey("a", "default"))
			wantOutput(t, s, "echo works", "works\n")
			if s.ID() == old {
				t.Errorf("got %s, which is not fit", old)
			}
			if rec := recordOf(t, opts.Store, old); rec.State != record.Closed {
				t.Errorf("record of the old one: %+v", rec)
			}
			old = awaitPool(t, m, 1)[0]
			e.id.Store("sha256:3")
			m.ReviewPool(t.Context())
			eventually(t, "the unused sandbox is replaced", func() bool { return awaitPool(t, m, 1)[0] != old })
		})
	}
}

// TestPoolOfTheDead verifies that the next sweep removes the pooled sandboxes of a dead process, including one that it
// was about to assign.
func TestPoolOfTheDead(t *testing.T) {
	t.Parallel()
	e := newPictured(t)
	opts := poolOptions(3)
	first := dying(t, e, opts)
	awaitPool(t, first, 3)
	reached := make(chan struct{})
	req := testImage()
	req.Prepare = func(ctx context.Context, _ *session.Session) error {
		close(reached)
		<-ctx.Done()
		return ctx.Err()
	}
	second := newManager(t, e, without(opts))
	second.Reap(t.Context())
	awaitPool(t, first, 3) // of a living process
	// The claim is recorded, and then the process dies: its store accepts no more changes.
	key := session.WorkflowKey("run_1", "default")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go first.Open(ctx, key, req) //nolint:errcheck // it never gets anything
	<-reached
	claimed := ""
	recs, err := opts.Store.List(t.Context(), record.Creating)
	must(t, err)
	for _, rec := range recs {
		if rec.Key == key {
			claimed = rec.ID
		}
	}
	rec := recordOf(t, opts.Store, claimed)
	awaitPool(t, first, 3)
	cancel()
	eventually(t, "it is given up", func() bool { return recordOf(t, opts.Store, claimed).State == record.Closed })
	must(t, errors.Join(opts.Store.Delete(t.Context(), claimed), opts.Store.Insert(t.Context(), rec)))
	first.Die()
	second.Reap(t.Context())
	if e.count() != 0 || recordOf(t, opts.Store, claimed).State != record.Closed {
		t.Errorf("%d sandboxes are left; the claimed one is %s", e.count(), recordOf(t, opts.Store, claimed).State)
	}
	if s := mustOpen(t, second, key); s.ID() == claimed {
		t.Error("the sandbox of a claim that was never finished was handed out")
	}
}

// TestPoolWithoutStore verifies that without a store, a sweep removes the pool of a dead process but not the pool of a
// running process.
func TestPoolWithoutStore(t *testing.T) {
	t.Parallel()
	e := newPictured(t)
	opts := poolOptions(2)
	opts.Store = nil
	first := dying(t, e, opts)
	awaitPool(t, first, 2)
	next := without(opts)
	second := newManager(t, e, next)
	newClock(second).add(time.Hour)
	second.Reap(t.Context())
	e.holds(t, 2)
	first.Die()
	eventually(t, "they go", func() bool { second.Reap(t.Context()); return e.count() == 0 })
}

// TestPoolAdopted verifies that a pool does not replace existing sandboxes and that its sandboxes can be adopted.
func TestPoolAdopted(t *testing.T) {
	t.Parallel()
	e := newPictured(t)
	opts := poolOptions(1)
	first := dying(t, e, opts)
	awaitPool(t, first, 1)
	key := session.WorkflowKey("run_1", "default")
	s := openKept(t, first, key, testImage())
	awaitPool(t, first, 1)
	first.Die()
	second := newManager(t, e, opts)
	second.Reap(t.Context())
	awaitPool(t, second, 1)
	third := newManager(t, e, without(opts))
	adopted := reopen(t, second, key, testImage(), s.ID())
	wantOutput(t, adopted, "cat file", "kept\n")
	named := session.UserKey("lab")
	lab := mustOpen(t, third, named)
	output(t, lab, "echo kept > file")
	must(t, third.Detach(t.Context()))
	reopen(t, second, named, testImage(), lab.ID())
	awaitPool(t, second, 1)
}

// TestPoolRace opens many sandboxes concurrently while the manager is closed. It verifies that each caller gets a
// separate sandbox and that none is left.
func TestPoolRace(t *testing.T) {
	t.Parallel()
	e := newPictured(t)
	m := newManager(t, e, poolOptions(4))
	awaitPool(t, m, 4)
	var ids sync.Map
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			ctx := t.Context()
			if i%4 == 3 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
			}
			s, _, err := m.Open(ctx, record.AgentKey(fmt.Sprintf("run_%d", i), "default"), testImage())
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			if _, taken := ids.LoadOrStore(s.ID(), i); taken {
				t.Errorf("%s was handed out twice", s.ID())
			}
			if i%2 == 0 {
				if err := s.Discard(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	must(t, m.Close(t.Context()))
	if e.count() != 0 || m.Used() != 0 {
		t.Errorf("%d sandboxes and %d places are left", e.count(), m.Used())
	}
}

// recipes is a builder of environments that the engine already has.
type recipes struct{ session.EnvironmentBuilder }

func (recipes) Recipe(session.Environment, string) (string, sandbox.Egress) {
	return "recipe", sandbox.Egress{}
}
func (recipes) Used(string)                                  {}
func (recipes) Lock(context.Context, string) (func(), error) { return func() {}, nil }

// TestInstallationLimits verifies that the sandbox for an installation has the limits of the requested sandbox, but not
// less than the usual memory.
func TestInstallationLimits(t *testing.T) {
	e, opts := newPictured(t), shared()
	opts.Egress, opts.Environments = &gate{}, recipes{}
	m := newManager(t, e, opts)
	for asked, want := range map[int64]int64{8 << 30: 8 << 30, 256 << 20: 2 << 30} {
		limits := backend.Limits{MemoryBytes: asked, PIDs: 40}
		e.setHooks(func(_ context.Context, spec backend.Spec) error {
			if spec.Building && spec.Limits == (backend.Limits{MemoryBytes: want, PIDs: 40}) {
				return backend.ErrCapacity // the limits are right, and nothing must be installed
			}
			return backend.ErrEnvironment
		}, nil, nil)
		req := session.Request{Image: "test:1", Limits: limits, Environment: session.Environment{Pip: []string{"six"}}}
		refuses(t, m, session.UserKey("lab"), req, backend.ErrCapacity)
	}
}

// TestEnvironments verifies that pooled sandboxes are created with the requested environment. A process without a
// builder refuses to recreate such a sandbox.
func TestEnvironments(t *testing.T) {
	t.Parallel()
	e, opts, key := newPictured(t), poolOptions(1), session.UserKey("lab")
	var made atomic.Value
	e.setHooks(func(_ context.Context, spec backend.Spec) error { made.Store(spec.Environment); return nil }, nil, nil)
	opts.Egress, opts.Environments = &gate{}, recipes{}
	opts.Pool[0].Request.Environment = session.Environment{Pip: []string{"six"}}
	m := newManager(t, e, opts)
	if ready := awaitPool(t, m, 1); made.Load() != "recipe" {
		t.Errorf("%v was created with the environment %q", ready, made.Load())
	}
	s := openAs(t, m, key, opts.Pool[0].Request)
	must(t, m.Detach(t.Context()))
	e.remove(s.Info().EngineID)
	other := shared()
	other.Store = opts.Store
	refuses(t, newManager(t, e, other), key, session.Request{Image: "test:1", Mode: session.OpenAsIs}, backend.ErrUnsupported)
}
