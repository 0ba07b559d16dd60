package backendtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/session"
)

func lossChecks() []check {
	return []check{
		{"main process killed", (*suite).killed},
		{"removed", (*suite).vanished},
		{"named and removed", (*suite).vanishedNamed},
		{"cancelled create", (*suite).cancelledCreate},
		{"closed", (*suite).closedBackend},
		{"closed during create", (*suite).closedDuringCreate},
	}
}

// killed ends the main process from outside, when a command has closed the workspace to its own user.
func (s *suite) killed(t *testing.T) {
	spec := s.lone(t)
	info := s.create(t, spec)
	conn := s.dial(t, info.ID)
	must(t, killMain(t, sh(t, conn, "readlink /proc/self/ns/pid; echo kept > f; chmod 0 .")))
	ends(t, conn)
	eventually(t, "the engine to notice", func() bool {
		got, err := s.b.Get(t.Context(), info.ID)
		return err == nil && got.State == backend.StateStopped
	})
	for name, err := range s.calls(t, info.ID, "Dial", "Connect", "Usage") {
		if !errors.Is(err, backend.ErrLost) {
			t.Errorf("%s: %v, want ErrLost", name, err)
			continue
		}
		forAgents(t, err)
	}
	if list, err := s.b.List(t.Context(), backend.Filter{Instance: spec.Instance}); err != nil || len(list) != 1 || list[0].State != backend.StateStopped {
		t.Errorf("List: %+v, %v", list, err)
	}
	must(t, s.b.Start(t.Context(), info.ID))
	want := map[bool]string{true: "kept\n", false: ""}[s.caps.Persistent]
	if got := sh(t, s.dial(t, info.ID), "cat f 2>/dev/null; true"); got != want {
		t.Errorf("files afterwards: %q, want %q", got, want)
	}
}

// ends waits for the end of a connection whose sandbox is gone.
func ends(t testing.TB, conn *client.Conn) {
	t.Helper()
	select {
	case <-conn.Done():
		if err := conn.Err(); !errors.Is(err, client.ErrConnLost) {
			t.Errorf("the connection ended with %v, want ErrConnLost", err)
		}
	case <-time.After(patience):
		t.Error("the connection does not end")
	}
}

// vanished leaves the workspace to be removed alone.
func (s *suite) vanished(t *testing.T) {
	spec := s.lone(t)
	info := s.create(t, spec)
	conn := s.dial(t, info.ID)
	must(t, s.h.Vanish(t.Context(), info.ID))
	ends(t, conn)
	s.gone(t, info.ID)
	if list, err := s.b.List(t.Context(), backend.Filter{Instance: spec.Instance}); err != nil || len(list) != 0 {
		t.Errorf("List: %+v, %v, want nothing", list, err)
	}
	s.remove(t, info.ID)
	s.nothingLeft(t, spec.Instance)
}

// vanishedNamed removes a named sandbox behind the manager's back. Its workspace waits for who opens its name, with its
// limit, or removes it.
func (s *suite) vanishedNamed(t *testing.T) {
	instance, store, key := freshInstance(), session.NewMemoryStore(), session.UserKey("lab")
	t.Cleanup(func() { s.nothingLeft(t, instance) })
	process := func() *session.Manager {
		return s.manager(t, s.b, session.Options{Instance: instance, Store: store, ReapEvery: -1})
	}
	req := session.Request{Image: s.h.Debian, Pull: backend.PullNever}
	if s.caps.Workspace != "" && s.caps.Workspace != backend.WorkspaceMemory {
		req.Limits.WorkspaceBytes = workspaceLimit
	}
	id := ""
	for _, want := range []string{"", "kept\n"} {
		m := process()
		x, created, err := m.Open(t.Context(), key, req)
		if err != nil || created != (want == "") || !created && x.ID() != id {
			t.Fatalf("Open: %v, new %v, %v", x, created, err)
		}
		id = x.ID()
		if got := inShell(t, x, "cat f 2>/dev/null; echo kept > f"); got != want {
			t.Errorf("f holds %q, want %q", got, want)
		}
		must(t, m.Detach(t.Context()))
		must(t, s.h.Vanish(t.Context(), x.Info().EngineID))
	}
	m := process()
	list, err := m.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].State != session.StateStopped {
		t.Errorf("List: %+v, %v, want it stopped", list, err)
	}
	var gone *session.VanishedError
	if _, err := m.Connect(t.Context(), id); !errors.As(err, &gone) {
		t.Errorf("Connect: %v, want a VanishedError", err)
	}
	must(t, m.Remove(t.Context(), id, true))
	s.nothingLeft(t, instance)
}

// cancelledCreate cancels at different times; nothing may be left.
func (s *suite) cancelledCreate(t *testing.T) {
	begin := time.Now()
	whole := s.create(t, s.spec())
	took := max(time.Since(begin), 5*time.Millisecond)
	s.remove(t, whole.ID)
	const steps = 14
	for i := range steps {
		spec := s.lone(t)
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(took*time.Duration(i)/(steps-2), cancel)
		info, err := s.b.Create(ctx, spec)
		timer.Stop()
		cancel()
		switch {
		case err == nil: // done before the cancellation came through
			s.remove(t, info.ID)
		case !errors.Is(err, context.Canceled):
			t.Errorf("Create: %v, want context.Canceled", err)
		}
		s.nothingLeft(t, spec.Instance)
		if list, err := s.b.List(t.Context(), backend.Filter{Instance: spec.Instance}); err != nil || len(list) != 0 {
			t.Errorf("List: %+v, %v, want nothing", list, err)
		}
	}
}

// closedBackend calls a backend after its end. The sandbox goes on.
func (s *suite) closedBackend(t *testing.T) {
	info, _ := s.inDebian(t)
	gone := &suite{h: s.h, b: s.backend(t), caps: s.caps}
	for range 3 {
		if err := gone.b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	errs := gone.calls(t, info.ID)
	errs["Create"] = second(gone.b.Create(t.Context(), s.spec()))
	errs["List"] = second(gone.b.List(t.Context(), backend.Filter{}))
	errs["Remove"] = gone.b.Remove(t.Context(), info.ID, backend.RemoveOptions{Volumes: true})
	if p, ok := gone.b.(backend.Pinger); ok {
		errs["Ping"] = second(p.Ping(t.Context()))
	}
	for name, err := range errs {
		if !errors.Is(err, backend.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
	s.inState(t, info.ID, backend.StateRunning)
}

// closedDuringCreate closes a backend under creations.
func (s *suite) closedDuringCreate(t *testing.T) {
	spec := s.lone(t)
	b := s.backend(t)
	var wg sync.WaitGroup
	for i := range 4 {
		one := s.spec()
		one.Instance = spec.Instance
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 10 * time.Millisecond) // so that they are at different steps
			if info, err := b.Create(t.Context(), one); err == nil {
				s.remove(t, info.ID)
			} else if !errors.Is(err, backend.ErrClosed) {
				t.Errorf("Create: %v, want ErrClosed", err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	wg.Wait()
	s.nothingLeft(t, spec.Instance)
}
