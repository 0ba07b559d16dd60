package sessiontest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// life is a sequence of processes of one instance on an engine.
type life struct {
	b        backend.SandboxBackend
	instance string
	store    record.Store
	req      session.Request // for a sandbox with a shell
	other    string          // another image with a shell
}

// Lifecycle verifies the lifecycle of named sandboxes: they are suspended when they are idle, resumed on the next use,
// and recreated with their files. It removes all sandboxes of the instance. other is an image other than the image of
// req. Both images must have a shell.
func Lifecycle(t *testing.T, b backend.SandboxBackend, instance string, req session.Request, other string) {
	for name, run := range map[string]func(*testing.T, *life){
		"suspend": suspending, "rebuild": rebuilding, "refused rebuild": refusedRebuilds,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, &life{b, instance, record.NewMemoryStore(), req, other})
		})
	}
}

// process returns the manager of a new process. The manager only sweeps if every is positive.
func (l *life) process(t *testing.T, every time.Duration) *session.Manager {
	t.Helper()
	m, err := session.NewManager(l.b, &session.Options{Instance: l.instance, Store: l.store, ReapEvery: every})
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	return m
}

// ended ends a process but keeps its sandboxes.
func ended(t *testing.T, m *session.Manager) {
	t.Helper()
	must(t, m.Detach(context.Background()))
}

// open opens a key and verifies whether the sandbox is new.
func (l *life) open(t *testing.T, m *session.Manager, key session.Key, req session.Request, wantNew bool) *session.Session {
	t.Helper()
	s, created, err := m.Open(t.Context(), key, req)
	if err != nil || created != wantNew {
		t.Fatalf("Open(%s): new %v, %v, want new %v", key, created, err, wantNew)
	}
	return s
}

// State returns the state of a sandbox as `sandbox ls` shows it. If the sandbox is not listed, it returns "".
func State(t *testing.T, m *session.Manager, id string) session.State {
	t.Helper()
	list, err := m.List(t.Context())
	must(t, err)
	for _, info := range list {
		if info.ID == id {
			return info.State
		}
	}
	return ""
}

// remove removes a sandbox at the end of a test.
func (l *life) remove(t *testing.T, id string) {
	t.Helper()
	m := l.process(t, -1)
	must(t, m.Remove(t.Context(), id, true))
	if got := State(t, m, id); got != "" {
		t.Errorf("a removed sandbox is %s", got)
	}
	ended(t, m)
}

// idle returns a request for an idle sandbox, which is then stopped.
func (l *life) idle() session.Request {
	req := l.req
	req.IdleTimeout, req.IdlePolicy = time.Nanosecond, record.IdleStop
	return req
}

// suspending verifies that the next process stops an idle sandbox without an owner, and that opening or connecting
// starts it. A later process uses the recorded idle policy.
func suspending(t *testing.T, l *life) {
	key := session.UserKey("suspending")
	first := l.process(t, -1)
	plain, req := l.req, l.idle()
	switch l.b.Capabilities().Workspace {
	case "":
	case backend.WorkspaceMemory:
		sized := l.idle()
		sized.Limits.WorkspaceBytes = 16 << 20
		if _, _, err := first.Open(t.Context(), key, sized); !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("a sandbox in memory with IdleStop: %v, want ErrUnsupported", err)
		}
	default: // a workspace with a size limit is also kept
		plain.Limits.WorkspaceBytes, req.Limits.WorkspaceBytes = 16<<20, 16<<20
	}
	s := l.open(t, first, key, req, true)
	write(t, s, "kept.txt", []byte("kept"), sandbox.WriteFileOptions{})
	if got := State(t, first, s.ID()); got != session.StateReady {
		t.Errorf("a new sandbox is %s", got)
	}
	ended(t, first)
	l.sweep(t, s.ID())
	second := l.process(t, -1)
	again := l.open(t, second, key, plain, false) // a request without a policy keeps the existing policy
	if again.ID() != s.ID() || again.Info().IdlePolicy != record.IdleStop || State(t, second, s.ID()) != session.StateReady {
		t.Errorf("opened again: %+v", again.Info())
	}
	if got := read(t, again, "kept.txt", sandbox.ReadFileOptions{}); string(got) != "kept" {
		t.Errorf("kept.txt holds %q", got)
	}
	ended(t, second)
	l.sweep(t, s.ID())
	third := l.process(t, -1)
	secondary, err := third.Connect(t.Context(), s.ID())
	must(t, err)
	if got := Output(t, secondary, "cat kept.txt"); got != "kept" {
		t.Errorf("kept.txt holds %q", got)
	}
	must(t, secondary.Close(t.Context()))
	ended(t, third)
	l.remove(t, s.ID())
}

// sweep starts a process to stop an idle sandbox.
func (l *life) sweep(t *testing.T, id string) {
	t.Helper()
	m := l.process(t, time.Hour) // a manager also sweeps when it starts
	Eventually(t, "the idle sandbox is stopped", func() bool { return State(t, m, id) == session.StateStopped })
	ended(t, m)
}

// gone verifies that a sandbox was removed.
func (l *life) gone(t *testing.T, id string) {
	t.Helper()
	if got := State(t, l.process(t, -1), id); got != "" {
		t.Errorf("a sandbox that was closed is %s", got)
	}
}

// rebuilding verifies that the workspace's files are kept if the image or a limit changes.
func rebuilding(t *testing.T, l *life) {
	key := session.UserKey("rebuilt")
	first := l.process(t, -1)
	s := l.open(t, first, key, l.req, true)
	Output(t, s, "mkdir -p dir && echo old > dir/file && ln -s dir/file link && chmod 700 dir")
	before := Output(t, s, "stat -c '%a %u:%g %F' dir dir/file link")
	ended(t, first)

	second := l.process(t, -1)
	changed := l.req
	changed.Image, changed.Limits.MemoryBytes = l.other, 77<<20
	var conflict *session.ConflictError
	if _, _, err := second.Open(t.Context(), key, changed); !errors.As(err, &conflict) {
		t.Fatalf("Open with another image: %v, want a ConflictError", err)
	}
	changed.Mode = session.OpenRebuild
	again := l.open(t, second, key, changed, false)
	if info := again.Info(); again.ID() != s.ID() || info.Limits.MemoryBytes != 77<<20 || info.EngineID == s.Info().EngineID {
		t.Errorf("recreated: %+v, before %+v", info, s.Info())
	}
	if got := Output(t, again, "cat link; echo new > dir/file"); got != "old\n" {
		t.Errorf("the new sandbox holds %q", got)
	}
	if after := Output(t, again, "stat -c '%a %u:%g %F' dir dir/file link"); after != before {
		t.Errorf("files:\n%s, before:\n%s", after, before)
	}
	// A sandbox with a running command is not rebuilt. An unused sandbox is rebuilt.
	back := l.req
	back.Mode = session.OpenRebuild
	command := Run(t, again, sandbox.ExecRequest{Command: "while [ ! -e stop ]; do sleep 0.05; done", Background: true})
	if _, _, err := second.Open(t.Context(), key, back); !errors.Is(err, backend.ErrExists) || errors.As(err, &conflict) {
		t.Errorf("Open while a command runs: %v, want ErrExists", err)
	}
	Output(t, again, "touch stop")
	if status, err := again.Command(command.ExecID).Wait(t.Context(), -1); err != nil || status.Status != sandbox.ExecCompleted {
		t.Errorf("the command: %+v, %v", status, err)
	}
	third := l.open(t, second, key, back, false)
	if got := Output(t, third, "cat dir/file"); got != "new\n" || third.ID() != s.ID() || third.Info().Limits.MemoryBytes == 77<<20 {
		t.Errorf("%+v holds %q", third.Info(), got)
	}
	if again := l.open(t, second, key, back, false); again != third {
		t.Error("a rebuild without a change made another session")
	}
	must(t, second.Close(t.Context()))
	l.gone(t, s.ID())
}

// refusedRebuilds verifies that a failed rebuild does not change the sandbox.
func refusedRebuilds(t *testing.T, l *life) {
	key := session.UserKey("refused")
	m := l.process(t, -1)
	s := l.open(t, m, key, l.req, true)
	Output(t, s, "echo here > file")
	engineID := s.Info().EngineID
	ended(t, m)
	for name, change := range map[string]func(*session.Request){
		"image":     func(r *session.Request) { r.Image = "workcell/no-such-image:1" },
		"user":      func(r *session.Request) { r.User = "4321:4321" },
		"workspace": func(r *session.Request) { r.Limits.WorkspaceBytes = 32 << 20 },
	} {
		req := l.req
		req.Mode = session.OpenRebuild
		change(&req)
		m := l.process(t, -1)
		if got, _, err := m.Open(t.Context(), key, req); err == nil {
			t.Errorf("a rebuild with another %s: %+v", name, got.Info())
		}
		ended(t, m)
	}
	m = l.process(t, -1)
	again := l.open(t, m, key, l.req, false)
	if got := Output(t, again, "cat file"); got != "here\n" || again.Info().EngineID != engineID {
		t.Errorf("%+v holds %q", again.Info(), got)
	}
	must(t, m.Close(t.Context()))
	l.gone(t, s.ID())
}
