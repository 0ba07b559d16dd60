//go:build linux

package session_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

// left opens a named sandbox, writes a file to it, and leaves it to other processes.
func left(t *testing.T, e *engine, opts *session.Options, key session.Key, policy record.IdlePolicy) *session.Session {
	t.Helper()
	m := dying(t, e, opts)
	req := testImage()
	req.IdlePolicy = policy
	s := openKept(t, m, key, req)
	must(t, m.Detach(t.Context()))
	return s
}

// TestKeptWorkspaceOfUser verifies that a kept workspace cannot be opened as another user, who cannot write to it.
func TestKeptWorkspaceOfUser(t *testing.T) {
	t.Parallel()
	key, e, opts := session.UserKey("lab"), newEngine(t), shared()
	m := newManager(t, e, opts)
	req := testImage()
	req.User = "1000:1000"
	s := openKept(t, m, key, req)
	must(t, m.CloseSession(t.Context(), key, session.CloseOptions{KeepWorkspace: true}))
	other := req
	other.User = "2000:2000"
	_, _, err := m.Open(t.Context(), key, other)
	if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "belongs to user 1000:1000") {
		t.Errorf("another user: %v", err)
	}
	if h := hint.Of(err); h == nil || h.Hint != "run `workcell sandbox open --user 1000:1000 …`" {
		t.Errorf("hint: %+v", h)
	}
	reopen(t, m, key, req, s.ID())
}

// hasFiles reports whether a session's workspace exists.
func (e *engine) hasFiles(t *testing.T, id string) bool {
	t.Helper()
	_, err := os.Stat(e.workspace(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestVanished verifies that a named sandbox is recreated with its existing workspace if its container was removed by
// another program, for example `docker container prune`. Then and in a rebuild, Prepare must not overwrite the files.
func TestVanished(t *testing.T) {
	t.Parallel()
	for _, policy := range []record.IdlePolicy{record.IdleRemove, record.IdleStop} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			key := session.UserKey("lab")
			s := left(t, e, opts, key, policy)
			e.remove(s.Info().EngineID)
			m := newManager(t, e, opts)
			if got := listed(t, m, s.ID()); got != session.StateStopped {
				t.Errorf("it is listed as %q", got)
			}
			var vanished *session.VanishedError
			if _, err := m.Connect(t.Context(), s.ID()); !errors.As(err, &vanished) || vanished.Key != key || !errors.Is(err, backend.ErrLost) {
				t.Errorf("Connect = %v, want a VanishedError", err)
			}
			seeded, req := 0, testImage()
			req.Prepare = func(context.Context, *session.Session) error { seeded++; return nil }
			again := reopen(t, m, key, req, s.ID())
			if again.Info().IdlePolicy != policy || seeded != 0 {
				t.Errorf("idle policy %s, prepared %d times", again.Info().IdlePolicy, seeded)
			}
			must(t, m.Detach(t.Context()))
			req.Image, req.Mode = "test:2", session.OpenRebuild
			if reopen(t, newManager(t, e, opts), key, req, s.ID()); seeded != 0 {
				t.Error("a rebuild prepared the existing workspace")
			}
		})
	}
}

// TestVanishedAltogether verifies that a new sandbox can be created with the name of a completely removed sandbox.
func TestVanishedAltogether(t *testing.T) {
	t.Parallel()
	for _, mode := range []session.OpenMode{session.OpenShared, session.OpenRebuild} {
		e, opts := newEngine(t), shared()
		key := session.UserKey("lab")
		s := left(t, e, opts, key, record.IdleRemove)
		e.remove(s.Info().EngineID)
		must(t, os.RemoveAll(e.workspace(s.ID())))
		m := newManager(t, e, opts)
		other := session.Request{Image: "test:1", User: "1234", Mode: mode}
		again, created, err := m.Open(t.Context(), key, other)
		if err != nil || !created || again.ID() == s.ID() || again.Info().User != "1234:1234" {
			t.Fatalf("mode %v: Open = %v, %v, %v, want a new sandbox", mode, again, created, err)
		}
		if recs, err := opts.Store.List(t.Context()); err != nil || len(recs) != 1 {
			t.Errorf("records %+v, %v", recs, err)
		}
	}
}

// TestVanishedWhileIdle verifies that the files of a sandbox with IdleStop are kept until they are removed explicitly.
func TestVanishedWhileIdle(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	stopped := left(t, e, opts, session.UserKey("stopped"), record.IdleStop)
	removed := left(t, e, opts, session.UserKey("removed"), record.IdleRemove)
	e.remove(stopped.Info().EngineID)
	e.remove(removed.Info().EngineID)
	m := newManager(t, e, opts)
	newClock(m).add(1000 * time.Hour)
	m.Reap(t.Context())
	if !e.hasFiles(t, stopped.ID()) || e.hasFiles(t, removed.ID()) {
		t.Errorf("files: %v with IdleStop, %v with IdleRemove", e.hasFiles(t, stopped.ID()), e.hasFiles(t, removed.ID()))
	}
	if rec := recordOf(t, opts.Store, stopped.ID()); rec.State != record.Ready || !rec.Expires.IsZero() || rec.Owner != "" {
		t.Errorf("record %+v", rec)
	}
}

// TestRemoveVanished verifies that the remains of a lost sandbox can be removed, with or without its workspace.
func TestRemoveVanished(t *testing.T) {
	t.Parallel()
	for name, volumes := range map[string]bool{"all": true, "workspace kept": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			key := session.UserKey("lab")
			s := left(t, e, opts, key, record.IdleStop)
			e.remove(s.Info().EngineID)
			m := newManager(t, e, opts)
			if !volumes {
				must(t, m.Remove(t.Context(), s.ID(), false))
				if rec := recordOf(t, opts.Store, s.ID()); listed(t, m, s.ID()) != session.StateStopped || !e.hasFiles(t, s.ID()) || rec.Expires.IsZero() {
					t.Errorf("record %+v, its workspace exists: %v", rec, e.hasFiles(t, s.ID()))
				}
			}
			must(t, m.Remove(t.Context(), s.ID(), true))
			if got := listed(t, m, s.ID()); got != "" || e.hasFiles(t, s.ID()) {
				t.Errorf("it is listed as %q, its workspace exists: %v", got, e.hasFiles(t, s.ID()))
			}
			if rec := recordOf(t, opts.Store, s.ID()); rec.State != record.Closed || rec.KeepWorkspace {
				t.Errorf("record %+v", rec)
			}
			if err := m.Remove(t.Context(), s.ID(), volumes); !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("Remove again = %v, want ErrNotFound", err)
			}
			opensAnother(t, m, key, testImage(), s.ID())
		})
	}
}

// TestKeptWorkspace verifies that a kept workspace is listed and available to the next opener of the key. It is removed
// when it expires or on request.
func TestKeptWorkspace(t *testing.T) {
	t.Parallel()
	key := session.UserKey("lab")
	for name, remove := range map[string]func(*testing.T, *engine, *session.Options) *session.Session{
		"left": func(t *testing.T, e *engine, opts *session.Options) *session.Session {
			s := left(t, e, opts, key, record.IdleStop)
			must(t, newManager(t, e, opts).Remove(t.Context(), s.ID(), false))
			return s
		},
		"one's own": func(t *testing.T, e *engine, opts *session.Options) *session.Session {
			m := newManager(t, e, opts)
			s := openKept(t, m, key, testImage())
			must(t, m.CloseSession(t.Context(), key, session.CloseOptions{KeepWorkspace: true}))
			return s
		},
		"of a process that lives": func(t *testing.T, e *engine, opts *session.Options) *session.Session {
			m := newManager(t, e, opts)
			s := openKept(t, m, key, testImage())
			must(t, newManager(t, e, opts).Remove(t.Context(), s.ID(), false))
			eventually(t, "its owner sees that it is gone", func() bool { return s.Info().State == session.StateLost })
			must(t, m.Close(t.Context()))
			return s
		},
		"without a record": func(t *testing.T, e *engine, opts *session.Options) *session.Session {
			s := left(t, e, opts, key, "")
			must(t, opts.Store.Delete(t.Context(), s.ID()))
			must(t, newManager(t, e, opts).Remove(t.Context(), s.ID(), false))
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			s := remove(t, e, opts)
			m, clock := newTimed(t, e, opts)
			clock.add(29 * 24 * time.Hour)
			m.Reap(t.Context())
			if got := listed(t, m, s.ID()); got != session.StateStopped || e.count() != 0 || !e.hasFiles(t, s.ID()) {
				t.Fatalf("it is listed as %q, there are %d, its files: %v", got, e.count(), e.hasFiles(t, s.ID()))
			}
			if list, err := admin.Abandoned(t.Context(), m); err != nil || len(list) != 1 || list[0].ID != s.ID() {
				t.Errorf("Abandoned = %v, %v", list, err)
			}
			reopen(t, m, key, session.Request{Image: "test:2"}, s.ID()) // the request may differ
			must(t, m.Remove(t.Context(), s.ID(), false))
			clock.add(31 * 24 * time.Hour)
			m.Reap(t.Context())
			if got := listed(t, m, s.ID()); got != "" || e.hasFiles(t, s.ID()) {
				t.Errorf("it is listed as %q, its files: %v", got, e.hasFiles(t, s.ID()))
			}
		})
	}
}

// TestKeepNothing verifies that Close removes nothing if the workspace cannot be kept without its sandbox.
func TestKeepNothing(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, noWorkspaces{e}, shared())
	s := mustOpen(t, m, session.UserKey("lab"))
	if err := m.Remove(t.Context(), s.ID(), false); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("Remove: %v, want ErrUnsupported", err)
	}
	output(t, s, "true")
}

// noWorkspaces is an engine without workspaces.
type noWorkspaces struct{ backend.SandboxBackend }

func (noWorkspaces) HasWorkspace(context.Context, string, string) (bool, error) {
	return false, backend.ErrUnsupported
}

// TestRemoveSaysSoBefore verifies that a removal is recorded before the engine is called. If the process dies, no
// sandbox is left and a workspace to be kept is not deleted. A failed removal changes nothing.
func TestRemoveSaysSoBefore(t *testing.T) {
	t.Parallel()
	t.Run("all", func(t *testing.T) { t.Parallel(); removeSaysSoBefore(t, true) })
	t.Run("workspace kept", func(t *testing.T) { t.Parallel(); removeSaysSoBefore(t, false) })
}

func removeSaysSoBefore(t *testing.T, volumes bool) {
	e, opts := newEngine(t), shared()
	s := left(t, e, opts, session.UserKey("lab"), record.IdleStop)
	before := recordOf(t, opts.Store, s.ID())
	var during record.Record
	e.setHooks(nil, func(string) (err error) {
		during, err = opts.Store.Get(t.Context(), s.ID())
		return errors.Join(err, backend.ErrUnavailable)
	}, nil)
	m := newManager(t, e, opts)
	if err := m.Remove(t.Context(), s.ID(), volumes); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Remove = %v, want ErrUnavailable", err)
	}
	e.setHooks(nil, nil, nil)
	if during.KeepWorkspace == volumes || during.Expires.IsZero() {
		t.Errorf("record while it is removed: %+v", during)
	}
	if after := recordOf(t, opts.Store, s.ID()); after != before {
		t.Errorf("record %+v, before %+v", after, before)
	}
	// The process died after the engine had removed the sandbox.
	e.remove(s.Info().EngineID)
	during.Owner = "gone"
	must(t, opts.Store.Update(t.Context(), during))
	m.Reap(t.Context())
	want := record.Ready
	if volumes {
		want = record.Closed
	}
	if rec := recordOf(t, opts.Store, s.ID()); rec.State != want || e.hasFiles(t, s.ID()) == volumes {
		t.Errorf("record %+v, the workspace exists: %v", rec, e.hasFiles(t, s.ID()))
	}
}

// unsure starts sandboxes but reports failure.
type unsure struct{ *engine }

func (e unsure) Start(ctx context.Context, id string) error {
	return errors.Join(e.engine.Start(ctx, id), backend.ErrUnavailable)
}

// TestFailedStartSuspendsAgain verifies that a sandbox is suspended again if it was resumed for an Open or a Connect
// that failed.
func TestFailedStartSuspendsAgain(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(e *engine, opts *session.Options, id string) error{
		"open": func(e *engine, opts *session.Options, _ string) error {
			req := testImage()
			req.OnAdopt = func(context.Context, *session.Session) error { return backend.ErrUnavailable }
			_, _, err := newManager(t, e, opts).Open(t.Context(), session.UserKey("lab"), req)
			return err
		},
		"unsure open": func(e *engine, opts *session.Options, _ string) error {
			_, _, err := newManager(t, unsure{e}, opts).Open(t.Context(), session.UserKey("lab"), testImage())
			return err
		},
		"unsure connect": func(e *engine, opts *session.Options, id string) error {
			_, err := newManager(t, unsure{e}, opts).Connect(t.Context(), id)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			s := left(t, e, opts, session.UserKey("lab"), record.IdleStop)
			m, clock := newTimed(t, e, opts)
			b, _ := e.fakeSandbox(s.Info().EngineID)
			clock.add(time.Hour)
			m.Reap(t.Context())
			if rec := recordOf(t, opts.Store, s.ID()); b.process().state() != backend.StateStopped || !rec.Expires.IsZero() {
				t.Fatalf("it does not rest: %+v", rec)
			}
			if err := try(e, opts, s.ID()); !errors.Is(err, backend.ErrUnavailable) {
				t.Fatalf("error %v, want ErrUnavailable", err)
			}
			if b.process().state() != backend.StateRunning {
				t.Fatal("it was not started")
			}
			eventually(t, "it is suspended again", func() bool { // a guest that has just started may not answer at once
				clock.add(time.Hour)
				m.Reap(t.Context())
				return b.process().state() == backend.StateStopped
			})
		})
	}
}

// inMemory is an engine with workspaces in memory, contrary to the capabilities.
type inMemory struct{ *engine }

func (e inMemory) Capabilities() backend.Capabilities { return backend.Capabilities{Persistent: true} }

// TestRefusedPolicyStartsNothing verifies that a stopped sandbox stays stopped if Open refuses the idle policy.
func TestRefusedPolicyStartsNothing(t *testing.T) {
	t.Parallel()
	e, opts, key, req := newEngine(t), shared(), session.UserKey("lab"), testImage()
	req.Limits.WorkspaceBytes = 1 << 30
	first := dying(t, e, opts)
	b, _ := e.fakeSandbox(openAs(t, first, key, req).Info().EngineID)
	must(t, first.Detach(t.Context()))
	b.murder()
	req.IdlePolicy = record.IdleStop
	_, _, err := newManager(t, inMemory{e}, opts).Open(t.Context(), key, req)
	if !errors.Is(err, backend.ErrUnsupported) || b.process().state() != backend.StateStopped {
		t.Errorf("Open = %v, and the sandbox is %s", err, b.process().state())
	}
}

// TestLostAndStarted verifies that a lost sandbox with IdleStop is available to the next opener of its key, with its
// files. The process that lost the sandbox may remove it only if no other process has taken it.
func TestLostAndStarted(t *testing.T) {
	t.Parallel()
	reap := func(t *testing.T, m *session.Manager, _ *session.Session) { m.Reap(t.Context()) }
	for name, test := range map[string]struct {
		after func(*testing.T, *session.Manager, *session.Session) // action of the process that lost it
		other bool                                                 // another process opens the key
	}{
		"opened again":                     {nil, false},
		"opened by another":                {nil, true},
		"idle, then opened again":          {reap, false},
		"idle, then opened by another":     {reap, true},
		"given up, then opened by another": {func(t *testing.T, m *session.Manager, _ *session.Session) { must(t, m.Detach(t.Context())) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			key := session.UserKey("lab")
			m, clock := newTimed(t, e, opts)
			s := lost(t, e, m, opts, key)
			clock.add(1000 * time.Hour)
			if test.after != nil {
				test.after(t, m, s)
			}
			opener := m
			if test.other {
				opener = newManager(t, e, opts)
			}
			again := reopen(t, opener, key, testImage(), s.ID())
			if test.other {
				must(t, m.Close(t.Context()))
				wantOutput(t, again, "cat file", "kept\n")
			}
			must(t, again.Close(t.Context()))
			if e.count() != 0 || e.hasFiles(t, s.ID()) {
				t.Errorf("%d sandboxes when it is closed", e.count())
			}
		})
	}
}

// TestLostAndRemoved verifies that the process that lost such a sandbox can remove it.
func TestLostAndRemoved(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	m := newManager(t, e, opts)
	s := lost(t, e, m, opts, session.UserKey("lab"))
	must(t, s.Close(t.Context()))
	if rec := recordOf(t, opts.Store, s.ID()); rec.State != record.Closed || e.count() != 0 || e.hasFiles(t, s.ID()) {
		t.Errorf("record %+v, %d sandboxes", rec, e.count())
	}
}

// lost opens a named sandbox with a file and kills it without its manager's involvement.
func lost(t *testing.T, e *engine, m *session.Manager, opts *session.Options, key session.Key) *session.Session {
	t.Helper()
	req := testImage()
	req.IdlePolicy = record.IdleStop
	s := openKept(t, m, key, req)
	e.murder(s.Info().EngineID)
	eventually(t, "it is lost and given up", func() bool {
		return s.Info().State == session.StateLost && recordOf(t, opts.Store, s.ID()).Owner == ""
	})
	return s
}
