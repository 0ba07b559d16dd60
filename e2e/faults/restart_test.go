package faults

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// restarts are the ways in which an engine is ended, and comes back.
type restarts struct {
	name, engine, daemon, signal string
	liveRestore                  bool
}

// TestEngineRestarts ends engines while sandboxes are made, used and removed, and starts them again. Where the engine
// lets its containers run on, nothing is lost. Where it does not, open sessions are said to be lost, and what a process
// had left for the next one is found with its files.
func TestEngineRestarts(t *testing.T) {
	t.Parallel()
	for _, c := range []restarts{
		{"ended, live-restore", "docker", "dockerd", "TERM", true},
		{"killed, live-restore", "docker", "dockerd", "KILL", true},
		{"containerd killed, live-restore", "docker", "containerd", "KILL", true},
		{"ended", "docker", "dockerd", "TERM", false},
		{"killed", "docker", "dockerd", "KILL", false},
		{"ended", "containerd", "containerd", "TERM", true},
		{"killed", "containerd", "containerd", "KILL", true},
	} {
		t.Run(c.engine+" "+c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

// run injects the fault.
func (c restarts) run(t *testing.T) {
	f := faultOf("engine "+c.name, c.engine)
	random := chance(t)
	x := newPrivate(t, c.engine, "600M", c.liveRestore)
	left := x.leaveSandbox(t)
	l := x.library(t, x.driver(t))
	for range laps(1) {
		s, _, err := l.Open(t.Context(), session.WorkflowKey(session.NewRunID(), "kept"), session.Request{Image: image, IdleTimeout: -1})
		if err != nil {
			t.Fatal(err)
		}
		kept := &written{s: s, done: map[string]bool{}, mayGo: !c.liveRestore}
		during(t, l, f, kept, func() {
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond) // the moment is what is tested
			x.restart(t, c.daemon, c.signal)
			f.inject(1)
		})
		if c.liveRestore {
			kept.check(t, f)
		} else {
			c.saidToBeLost(t, l, s, f)
		}
		eventually(t, "sandboxes can be had again", func() bool { return visit(t.Context(), l) == nil })
		if err := l.CloseScope(t.Context(), s.Key().Scope()); err != nil {
			t.Error(err)
		}
		x.onlyLeft(t, l, f, left)
		if t.Failed() {
			return
		}
	}
	x.takeSandbox(t, f, left)
}

// saidToBeLost: the sandbox is gone or stopped, and its session does not pretend.
func (c restarts) saidToBeLost(t *testing.T, l *library, s *session.Session, f *fault) {
	t.Helper()
	eventually(t, "the session says that it is lost", func() bool {
		_, err := s.Exec(t.Context(), session.ExecRequest{Argv: []string{"true"}})
		return errors.Is(err, backend.ErrLost)
	})
	again, created, err := l.Open(t.Context(), s.Key(), session.Request{Image: image, IdleTimeout: -1})
	if err != nil || !created || again.ID() == s.ID() {
		f.lose(t, "opening a lost session again: %v, %v, %v", again, created, err)
	}
}

// leaveSandbox makes a named sandbox with a file in it, as a process does that ends, and gives its id.
func (x *private) leaveSandbox(t *testing.T) string {
	t.Helper()
	l := x.library(t, x.driver(t))
	s, _, err := l.Open(t.Context(), session.UserKey("left"), session.Request{Image: image, IdleTimeout: -1})
	if err == nil {
		_, err = s.Exec(t.Context(), session.ExecRequest{Command: "echo left > file"})
	}
	if err = errors.Join(err, l.Detach(t.Context())); err != nil {
		t.Fatal(err)
	}
	return s.ID()
}

// takeSandbox finds it again and removes it.
func (x *private) takeSandbox(t *testing.T, f *fault, id string) {
	t.Helper()
	l := x.library(t, x.driver(t))
	s, created, err := l.Open(t.Context(), session.UserKey("left"), session.Request{Image: image, IdleTimeout: -1})
	if err != nil || created || s.ID() != id {
		f.lose(t, "what was left for the next process: %v, %v, %v", s, created, err)
		return
	}
	res, err := s.Exec(t.Context(), session.ExecRequest{Command: "cat file"})
	if err != nil || string(res.Stdout.Bytes()) != "left\n" {
		f.lose(t, "its file: %q, %v", res.Stdout.Bytes(), err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	x.onlyLeft(t, l, f, "")
}

// onlyLeft waits until the engine has no sandbox but one.
func (x *private) onlyLeft(t *testing.T, l *library, f *fault, id string) {
	t.Helper()
	var rest []string
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		list, err := l.Backend().List(t.Context(), backend.Filter{Instance: l.Instance()})
		rest = nil
		for _, info := range list {
			if info.SessionID != id {
				rest = append(rest, info.SessionID+" of "+info.Key)
			}
		}
		if err == nil && len(rest) == 0 {
			return
		}
		if time.Now().After(deadline) {
			f.leave(t, rest)
			return
		}
	}
}

// during lets clients make, use and remove sandboxes while a fault is there.
func during(t *testing.T, l *library, f *fault, kept *written, fault func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	work := func(once func() error, may func(error) bool) {
		wg.Go(func() {
			for ctx.Err() == nil {
				err := once()
				if err != nil && !may(err) {
					f.lose(t, "under way: %v", err)
				}
				if err != nil {
					time.Sleep(10 * time.Millisecond) // what is refused at once is not asked for all the time
				}
			}
		})
	}
	for range 2 {
		work(func() error { return visit(t.Context(), l) }, typed)
	}
	work(func() error { return kept.write(t.Context()) }, func(err error) bool {
		return errors.Is(err, backend.ErrUnavailable) || kept.mayGo && errors.Is(err, backend.ErrLost)
	})
	fault()
	stop()
	wg.Wait()
}
