//go:build linux

package faults

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// injury is a fault injected into an engine while sandboxes are created, used, and removed on it.
type injury struct {
	name   string
	gone   bool // the existing sandbox is lost, and its session must report that
	inject func(t *testing.T, x *private, kept *session.Session, random *rand.Rand)
}

// moment waits for a random time.
func moment(random *rand.Rand) { time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond) }

// stopping stops a daemon and starts it again.
func stopping(daemon, signal string) func(*testing.T, *private, *session.Session, *rand.Rand) {
	return func(t *testing.T, x *private, _ *session.Session, random *rand.Rand) {
		moment(random)
		x.Restart(t, daemon, signal)
	}
}

// forAWhile injects a fault into an engine at a random moment and reverts it after a random time.
func forAWhile(do, undo func(t *testing.T, x *private)) func(*testing.T, *private, *session.Session, *rand.Rand) {
	return func(t *testing.T, x *private, _ *session.Session, random *rand.Rand) {
		moment(random)
		do(t, x)
		time.Sleep(time.Duration(500+random.IntN(1500)) * time.Millisecond)
		undo(t, x)
	}
}

// killShim kills the process between the engine and the sandbox.
func killShim(t *testing.T, x *private, kept *session.Session, random *rand.Rand) {
	moment(random)
	x.KillShim(t, kept.Info().EngineID)
}

// TestInjuredEngine stops and restarts engines while sandboxes are created, used, and removed, and takes away necessary
// resources. If the engine keeps the containers running, nothing is lost. Otherwise, open sessions are reported as
// lost, and the sandbox of an earlier process is found with all files.
func TestInjuredEngine(t *testing.T) {
	t.Parallel()
	full := injury{"disk full", false, forAWhile(func(t *testing.T, x *private) { x.Fill(t) }, func(t *testing.T, x *private) { x.Free(t) })}
	untagged := injury{"image removed", false, forAWhile(func(t *testing.T, x *private) { x.forgetImage(t) }, func(t *testing.T, x *private) { x.LoadImage(t, x.engine, image) })}
	shim := injury{"shim killed", true, killShim}
	for name, c := range map[string]struct {
		engine      string
		liveRestore bool
		injuries    []injury
	}{
		"docker with live-restore": {"docker", true, []injury{
			{"ended, live-restore", false, stopping("dockerd", "TERM")}, {"killed, live-restore", false, stopping("dockerd", "KILL")},
			{"containerd killed, live-restore", false, stopping("containerd", "KILL")}, full, untagged, shim,
		}},
		"docker": {"docker", false, []injury{
			{"ended", true, stopping("dockerd", "TERM")}, {"killed", true, stopping("dockerd", "KILL")},
		}},
		"containerd": {"containerd", false, []injury{
			{"ended", false, stopping("containerd", "TERM")}, {"killed", false, stopping("containerd", "KILL")}, full, untagged, shim,
		}},
		"local": {"local", false, []injury{full}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := chance(t)
			x := newPrivate(t, c.engine, "500M", c.liveRestore)
			left := x.leaveSandbox(t)
			l := x.library(t, x.driver(t))
			for range laps(1) {
				for _, i := range random.Perm(len(c.injuries)) {
					x.injure(t, l, c.injuries[i], random, left)
					if t.Failed() {
						return
					}
				}
			}
			x.takeSandbox(t, faultOf("engine "+c.injuries[0].name, c.engine), left)
		})
	}
}

// injure injects a fault. left is the id of a remaining sandbox.
func (x *private) injure(t *testing.T, l *library, c injury, random *rand.Rand, left string) {
	t.Helper()
	t.Log(c.name)
	f := faultOf("engine "+c.name, x.engine)
	pipes := x.pipes(t)
	s, _, err := l.Open(t.Context(), session.WorkflowKey(session.NewRunID(), "kept"), session.Request{Image: image, IdleTimeout: -1})
	must(t, err)
	kept := &written{s: s, done: map[string]bool{}, mayGo: c.gone}
	during(t, l, f, kept, func() {
		c.inject(t, x, s, random)
		f.inject(1)
	})
	if c.gone {
		saidToBeLost(t, l, s, f)
	} else {
		kept.check(t, f)
	}
	eventually(t, "sandboxes can be opened again", func() bool { return useOnce(t.Context(), l) == nil })
	if err := l.CloseScope(t.Context(), s.Key().Scope()); err != nil {
		t.Error(err)
	}
	x.onlyLeft(t, l, f, left)
	f.leaves(t, func() []string {
		return slices.DeleteFunc(x.pipes(t), func(p string) bool { return slices.Contains(pipes, p) })
	})
}

// saidToBeLost verifies that the sandbox is stopped, that its session reports this, and that the run can open it again.
func saidToBeLost(t *testing.T, l *library, s *session.Session, f *fault) {
	t.Helper()
	eventually(t, "the session says that it is lost", func() bool {
		_, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"true"}})
		return errors.Is(err, backend.ErrLost)
	})
	again, created, err := l.Open(t.Context(), s.Key(), session.Request{Image: image, IdleTimeout: -1})
	if err != nil || created || again.ID() != s.ID() {
		f.lose(t, "opening a lost session again: %v, %v, %v", again, created, err)
	}
}

// leaveSandbox creates a named sandbox with a file in it, like an exiting process, and returns the id.
func (x *private) leaveSandbox(t *testing.T) string {
	t.Helper()
	l := x.library(t, x.driver(t))
	s, _, err := l.Open(t.Context(), session.UserKey("left"), session.Request{Image: image, IdleTimeout: -1})
	if err == nil {
		_, err = s.Exec(t.Context(), sandbox.ExecRequest{Command: "echo left > file"})
	}
	must(t, errors.Join(err, l.Detach(t.Context())))
	return s.ID()
}

// takeSandbox finds the sandbox of leaveSandbox and removes it.
func (x *private) takeSandbox(t *testing.T, f *fault, id string) {
	t.Helper()
	l := x.library(t, x.driver(t))
	s, created, err := l.Open(t.Context(), session.UserKey("left"), session.Request{Image: image, IdleTimeout: -1})
	if err != nil || created || s.ID() != id {
		f.lose(t, "what was left for the next process: %v, %v, %v", s, created, err)
		return
	}
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "cat file"})
	if err != nil || string(res.Stdout.Bytes()) != "left\n" {
		f.lose(t, "its file: %+v, %v", res, err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	x.onlyLeft(t, l, f, "")
}

// onlyLeft waits until the engine has only one sandbox.
func (x *private) onlyLeft(t *testing.T, l *library, f *fault, id string) {
	t.Helper()
	f.leaves(t, func() (rest []string) {
		list, err := l.Backend().List(t.Context(), backend.Filter{Instance: l.Instance()})
		if err != nil {
			rest = append(rest, err.Error())
		}
		for _, info := range list {
			if info.SessionID != id {
				rest = append(rest, info.SessionID+" of "+info.Key)
			}
		}
		return rest
	})
}
