//go:build linux

package session_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestBrokenRebuild verifies that an interrupted rebuild keeps the workspace. If the old sandbox was already removed,
// the record notes the kept workspace: no sweep deletes it, it is listed, and it can be opened. If the rebuild is
// interrupted earlier, the old sandbox is unchanged.
func TestBrokenRebuild(t *testing.T) {
	t.Parallel()
	key := session.UserKey("lab")
	for name, before := range map[string]bool{"begun": false, "not begun": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			s := left(t, e, opts, key, "")
			m := newManager(t, e, opts)
			e.setHooks(func(_ context.Context, spec backend.Spec) error {
				if spec.ID == s.ID() {
					return backend.ErrUnavailable // the test sandbox before it succeeded
				}
				return nil
			}, func(id string) error {
				if before && id == s.Info().EngineID {
					return backend.ErrUnavailable
				}
				return nil
			}, nil)
			refuses(t, m, key, session.Request{Image: "test:2", Mode: session.OpenRebuild}, backend.ErrUnavailable)
			e.setHooks(nil, nil, nil)
			if before {
				if rec := recordOf(t, opts.Store, s.ID()); rec.State != record.Ready || rec.KeepWorkspace || rec.Owner != "" || rec.Expires.IsZero() {
					t.Errorf("record %+v", rec)
				}
				return
			}
			newClock(m).add(1000 * time.Hour)
			m.Reap(t.Context())
			if rec := recordOf(t, opts.Store, s.ID()); rec.State != record.Ready || !rec.KeepWorkspace || rec.Owner != "" || e.count() != 0 {
				t.Fatalf("record %+v, %d sandboxes", rec, e.count())
			}
			if got := listed(t, m, s.ID()); got != session.StateStopped || !e.hasFiles(t, s.ID()) {
				t.Errorf("it is listed as %q, its workspace exists: %v", got, e.hasFiles(t, s.ID()))
			}
			next := newManager(t, e, opts)
			reopen(t, next, key, testImage(), s.ID())
			if rec := recordOf(t, opts.Store, s.ID()); rec.KeepWorkspace || rec.Owner != next.Owner() {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// limiting is an engine whose enforcement of workspace limits depends on the runtime.
type limiting struct{ *engine }

func (e limiting) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	info, err := e.engine.Create(ctx, spec)
	if err != nil {
		return info, err
	}
	b, _ := e.fakeSandbox(info.ID)
	b.info.Workspace = backend.WorkspaceSized
	if spec.OCIRuntime != "" {
		b.info.Workspace = backend.WorkspaceWatched
	}
	return b.info, nil
}

// TestOnlyWhatFits verifies that a sandbox that cannot use the workspace does not replace an existing or lost sandbox,
// and that the workspace is unchanged. Without OpenRebuild, every difference is a conflict.
func TestOnlyWhatFits(t *testing.T) {
	t.Parallel()
	sized := func(image string, n int64, user, runtime string) session.Request {
		limits := backend.Limits{WorkspaceBytes: n << 20, PIDs: n}
		return session.Request{Image: image, User: user, OCIRuntime: runtime, Limits: limits}
	}
	for _, there := range []bool{true, false} {
		e := limiting{newEngine(t)}
		opts := shared()
		key := session.UserKey("lab")
		first := newManager(t, e, opts)
		s := openKept(t, first, key, sized("test:1", 64, "", ""))
		must(t, first.Detach(t.Context()))
		if !there {
			e.remove(s.Info().EngineID)
		}
		m := newManager(t, e, opts)
		for name, req := range map[string]session.Request{
			"image": sized("test:2", 64, "", ""), "user": sized("test:1", 64, "1234", ""), "size": sized("test:1", 32, "", ""),
			"enforcement": sized("test:1", 64, "", "other"),
		} {
			var conflict *session.ConflictError
			if _, _, err := m.Open(t.Context(), key, req); !errors.As(err, &conflict) {
				t.Errorf("another %s, its container exists: %v: Open = %v, want a ConflictError", name, there, err)
			}
			if req.Mode = session.OpenRebuild; name == "image" {
				continue
			}
			if _, _, err := m.Open(t.Context(), key, req); !errors.Is(err, backend.ErrUnsupported) {
				t.Errorf("another %s, its container exists: %v: rebuild = %v, want ErrUnsupported", name, there, err)
			}
			if _, still := e.fakeSandbox(s.Info().EngineID); still != there || !e.hasFiles(t, s.ID()) {
				t.Errorf("another %s: the container exists: %v, the files: %v", name, still, e.hasFiles(t, s.ID()))
			}
		}
		again := sized("test:2", 64, "", "")
		again.Mode, again.Limits.PIDs = session.OpenRebuild, 0 // a setting that is not passed returns to the default
		made, created, err := m.Open(t.Context(), key, again)
		if err != nil || created || made.ID() != s.ID() || e.count() != 1 || made.Info().Limits.PIDs != 0 {
			t.Fatalf("rebuild = %v, %v, %v; %d sandboxes", made, created, err, e.count())
		}
		wantOutput(t, made, "cat file", "kept\n")
	}
}

// TestDurableRequests verifies that settings for named sandboxes with a shared store are refused otherwise, and that
// the policy of an open sandbox does not change.
func TestDurableRequests(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m, alone := newManager(t, e, shared()), newManager(t, e, nil)
	stop, rebuild := session.Request{Image: "test:1", IdlePolicy: record.IdleStop}, session.Request{Image: "test:1", Mode: session.OpenRebuild}
	unknown := session.Request{Image: "test:1", IdlePolicy: "sleep"}
	for name, try := range map[string]struct {
		m   *session.Manager
		key session.Key
		req session.Request
	}{
		"policy of a run":      {m, session.WorkflowKey("run_1", "default"), stop},
		"rebuild of a run":     {m, session.WorkflowKey("run_1", "default"), rebuild},
		"policy, no store":     {alone, session.UserKey("lab"), stop},
		"rebuild, no store":    {alone, session.UserKey("lab"), rebuild},
		"unknown policy":       {m, session.UserKey("lab"), unknown},
		"none, and of nothing": {alone, session.WorkflowKey("run_1", "default"), unknown},
	} {
		if _, _, err := try.m.Open(t.Context(), try.key, try.req); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	mustOpen(t, m, session.UserKey("lab"))
	differs(t, m, session.UserKey("lab"), stop, "idle policy")
}

// TestBusySandboxIsNotStopped verifies that neither the owner nor a sweep stops a sandbox in which a command is
// running.
func TestBusySandboxIsNotStopped(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	first := dying(t, e, opts)
	clock := newClock(first)
	req := testImage()
	req.IdlePolicy = record.IdleStop
	s := openAs(t, first, session.UserKey("lab"), req)
	run(t, s, sandbox.ExecRequest{Command: "while [ ! -e stop ]; do sleep 0.05; done", Background: true})
	clock.add(1000 * time.Hour)
	first.Reap(t.Context())
	b, _ := e.fakeSandbox(s.Info().EngineID)
	if s.Info().State != session.StateReady || b.process().state() != backend.StateRunning {
		t.Fatalf("a busy sandbox was stopped: %s", s.Info().State)
	}
	must(t, first.Detach(t.Context()))
	second := newManager(t, e, opts)
	newClock(second).add(2000 * time.Hour)
	second.Reap(t.Context())
	if b.process().state() != backend.StateRunning {
		t.Fatal("a sweep stopped a busy sandbox")
	}
	third := newManager(t, e, opts) // starts after the command has ended
	late := newClock(third)
	late.add(4000 * time.Hour)
	v := mustConnect(t, third, s.ID())
	output(t, v, "touch stop")
	must(t, v.Close(t.Context()))
	eventually(t, "the idle sandbox is stopped", func() bool {
		late.add(time.Hour)
		third.Reap(t.Context())
		return b.process().state() == backend.StateStopped
	})
	if rec := recordOf(t, opts.Store, s.ID()); rec.State != record.Ready || !rec.Expires.IsZero() || rec.IdlePolicy != record.IdleStop {
		t.Errorf("record %+v", rec)
	}
}

// TestStoppedWhileConnecting verifies that Connect starts a sandbox again if a sweep stops it between lookup and
// connection. Then the sandbox is no longer recorded as lost.
func TestStoppedWhileConnecting(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	s := left(t, e, opts, session.UserKey("lab"), record.IdleStop)
	rec := recordOf(t, opts.Store, s.ID())
	rec.KeepWorkspace, rec.Reason = true, "engine lost"
	must(t, opts.Store.Update(t.Context(), rec))
	var stop sync.Once
	e.setHooks(nil, nil, func(ctx context.Context, id string) (err error) {
		stop.Do(func() {
			must(t, e.Stop(ctx, id))
			err = backend.ErrLost
		})
		return err
	})
	v := mustConnect(t, newManager(t, e, opts), s.ID())
	wantOutput(t, v, "cat file", "kept\n")
	must(t, v.Close(t.Context()))
	if rec = recordOf(t, opts.Store, s.ID()); rec.KeepWorkspace || rec.Reason != "" {
		t.Errorf("a running sandbox is recorded as lost: %+v", rec)
	}
}

// TestSlowRebuild verifies that the manager's sweep does not remove the test sandbox of a rebuild.
func TestSlowRebuild(t *testing.T) {
	t.Parallel()
	key, e, opts := session.UserKey("lab"), newEngine(t), shared()
	s := left(t, e, opts, key, "")
	m, clock := newTimed(t, e, opts)
	var swept atomic.Bool
	e.setHooks(nil, nil, func(context.Context, string) error {
		if swept.CompareAndSwap(false, true) {
			clock.add(3 * time.Minute)
			m.Reap(t.Context())
		}
		return nil
	})
	reopen(t, m, key, session.Request{Image: "test:2", Mode: session.OpenRebuild}, s.ID())
}
