//go:build linux

package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// logBuffer collects a manager's log.
type logBuffer struct{ buffertest.Buffer }

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(l, nil)) }

func TestLookupStaysInItsScope(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	var log logBuffer
	m := newManager(t, e, &session.Options{Logger: log.logger()})
	mine := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	foreign := mustOpen(t, m, session.WorkflowKey("run_2", "default"))
	scope := mine.Key().Scope()
	if s, err := m.Lookup(t.Context(), scope, mine.ID()); err != nil || s != mine {
		t.Fatalf("Lookup in its scope = %v, %v", s, err)
	}
	_, unknownErr := m.Lookup(t.Context(), scope, "sbx_"+record.NewID())
	if !errors.Is(unknownErr, backend.ErrNotFound) {
		t.Fatalf("Lookup of an unknown id = %v", unknownErr)
	}
	if log.String() != "" {
		t.Errorf("log of an unknown id: %s", log.String())
	}
	engineID := mine.Info().EngineID
	for _, id := range []string{
		foreign.ID(), engineID, engineID[:12], "", "/", "..", mine.ID()[:12], mine.ID() + "\x00", strings.ToUpper(mine.ID()),
		"sbx_" + strings.Repeat("a", 10<<10), mine.Key().String(), "workcell-" + mine.ID(),
	} {
		_, err := m.Lookup(t.Context(), scope, id)
		if err == nil || err.Error() != unknownErr.Error() || !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Lookup(%.40q) = %v, want exactly %v", id, err, unknownErr)
		}
	}
	audit := log.String()
	if strings.Count(audit, "\n") != 1 || !strings.Contains(audit, foreign.ID()) || !strings.Contains(audit, "workflow:run_1") || !strings.Contains(audit, "workflow:run_2") {
		t.Errorf("audit log: %s", audit)
	}
	if _, err := m.Lookup(t.Context(), record.AgentKey("run_1", "x").Scope(), mine.ID()); err == nil || err.Error() != unknownErr.Error() {
		t.Errorf("a run of another namespace found my sandbox: %v", err)
	}
	// After Close, the id is closed for its own scope and still unknown to other scopes.
	must(t, foreign.Close(t.Context()))
	if _, err := m.Lookup(t.Context(), scope, foreign.ID()); err == nil || err.Error() != unknownErr.Error() {
		t.Errorf("Lookup of a foreign closed id = %v", err)
	}
	if _, err := m.Lookup(t.Context(), foreign.Key().Scope(), foreign.ID()); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Lookup of my closed id = %v, want ErrClosed", err)
	}
	fresh := mustOpen(t, m, foreign.Key())
	if fresh.ID() == foreign.ID() {
		t.Error("a closed id came back")
	}
	if _, err := m.Lookup(t.Context(), foreign.Key().Scope(), foreign.ID()); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Lookup of a closed id after the key was opened again = %v, want ErrClosed", err)
	}
	for _, id := range []string{engineID, engineID[:12], mine.ID()[:20], "no such", ""} {
		if _, err := m.Connect(t.Context(), id); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Connect(%q) = %v", id, err)
		}
		if err := m.Remove(t.Context(), id, true); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Remove(%q) = %v", id, err)
		}
	}
	wantOutput(t, mine, "echo untouched", "untouched\n")
}

// ruins are ways to lose a sandbox without its manager's involvement.
var ruins = map[string]func(e *engine, id string){
	"killed":  (*engine).murder,
	"removed": (*engine).remove,
	"restarted": func(e *engine, id string) {
		e.murder(id)
		if err := e.Start(context.Background(), id); err != nil {
			panic(err)
		}
	},
}

// TestLost verifies that all calls fail with ErrLost after the sandbox was killed or removed.
func TestLost(t *testing.T) {
	t.Parallel()
	for name, ruin := range ruins {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			var log logBuffer
			m := newManager(t, e, &session.Options{Logger: log.logger()})
			key := record.AgentKey("run_1", "default")
			s := openKept(t, m, key, testImage())
			running := make(chan error, 1)
			go func() {
				_, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "while [ -e file ]; do sleep 0.05; done"})
				running <- err
			}()
			eventually(t, "a command runs", func() bool { return s.Active() == 1 })
			ruin(e, s.Info().EngineID)
			if err := <-running; !errors.Is(err, backend.ErrLost) {
				t.Errorf("the running command = %v, want ErrLost", err)
			}
			if _, err := s.StatFile(t.Context(), "file"); !errors.Is(err, backend.ErrLost) {
				t.Errorf("the next call = %v, want ErrLost", err)
			}
			if state := s.Info().State; state != session.StateLost {
				t.Errorf("state %s, want lost", state)
			}
			if list := mustList(t, m); len(list) != 1 || list[0].State != session.StateLost {
				t.Errorf("list %+v", list)
			}
			if !strings.Contains(log.String(), "sandbox lost") {
				t.Errorf("log: %s", log.String())
			}
			reopen(t, m, key, testImage(), s.ID())
			if e.count() != 1 || m.Used() != 1 {
				t.Errorf("%d sandboxes, %d places, want 1 each", e.count(), m.Used())
			}
		})
	}
}

// TestReconnect verifies that a session reconnects after its stream breaks.
func TestReconnect(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	b, _ := e.fakeSandbox(s.Info().EngineID)
	background, err := s.Start(t.Context(), sandbox.ExecRequest{Command: "sleep 2; echo done"})
	must(t, err)
	succeeded := 0
	for i := range 10 {
		b.process().cut()
		res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: fmt.Sprintf("echo %d | tee -a log", i)})
		switch {
		case err == nil && string(res.Stdout.Bytes()) == fmt.Sprintf("%d\n", i):
			succeeded++
		case !errors.Is(err, backend.ErrUnavailable): // the request was sent just before the break was noticed
			t.Fatalf("command %d: %+v, %v", i, res, err)
		}
	}
	if again := output(t, s, "sort log | uniq -d"); again != "" || succeeded == 0 {
		t.Errorf("%d commands succeeded, some ran twice: %q", succeeded, again)
	}
	running := make(chan error, 1)
	go func() {
		_, err := s.Stream(t.Context(), sandbox.ExecRequest{Command: "echo ran >> streamed; sleep 1000"}, sandbox.Streams{})
		running <- err
	}()
	eventually(t, "a streamed command runs", func() bool { _, err := s.StatFile(t.Context(), "streamed"); return err == nil })
	b.process().cut()
	if err := <-running; !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "result is unknown") {
		t.Errorf("the running streamed command = %v, want ErrUnavailable", err)
	}
	if status, err := background.Wait(t.Context(), -1); err != nil || status.Status != sandbox.ExecCompleted || status.ExitCode != 0 {
		t.Errorf("the background command = %+v, %v", status, err)
	}
	if s.Info().State != session.StateReady {
		t.Errorf("state %s", s.Info().State)
	}
}

// TestEngineAway verifies that file calls fail while the engine is unavailable. Exec waits for a running command, and a
// later cancellation still kills the command. If a command is canceled while the engine is unavailable, the command has
// ended before the next call.
func TestEngineAway(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	b, _ := e.fakeSandbox(s.Info().EngineID)
	type ended struct {
		res sandbox.ExecResult
		err error
	}
	running, cancelled, abandoned := make(chan ended, 1), make(chan ended, 1), make(chan ended, 1)
	start := func(ctx context.Context, command string, end chan<- ended) {
		res, err := s.Exec(ctx, sandbox.ExecRequest{Command: command})
		end <- ended{res, err}
	}
	ctx, cancel := context.WithCancel(t.Context())
	leaving, leave := context.WithCancel(t.Context())
	go start(t.Context(), "echo ran >> once; until test -e go; do sleep 0.01; done; cat once", running)
	go start(ctx, "touch other; sleep 1000", cancelled)
	go start(leaving, "touch third; sleep 1000", abandoned)
	for _, name := range []string{"once", "other", "third"} {
		eventually(t, "a command runs", func() bool { _, err := s.StatFile(t.Context(), name); return err == nil })
	}
	e.setHooks(nil, nil, func(context.Context, string) error { return fmt.Errorf("%w: away", backend.ErrUnavailable) })
	b.process().cut()
	if _, err := s.StatFile(t.Context(), "."); !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrLost) {
		t.Errorf("StatFile = %v, want ErrUnavailable", err)
	}
	leave()
	if end := <-abandoned; !errors.Is(end.err, context.Canceled) {
		t.Errorf("the command that was abandoned: %+v, %v", end.res, end.err)
	}
	e.setHooks(nil, nil, nil)
	eventually(t, "the session recovers", func() bool {
		list, err := s.Commands(t.Context())
		if left := slices.DeleteFunc(list, sandbox.ExecStatus.Done); err == nil && len(left) != 2 {
			t.Errorf("%d commands run, want 2: %+v", len(left), left)
		}
		return err == nil
	})
	output(t, s, "touch go")
	if end := <-running; end.err != nil || string(end.res.Stdout.Bytes()) != "ran\n" {
		t.Errorf("the running command: %+v, %v", end.res, end.err)
	}
	cancel()
	if end := <-cancelled; !errors.Is(end.err, context.Canceled) {
		t.Errorf("the command that was cancelled: %+v, %v", end.res, end.err)
	}
	eventually(t, "no command runs", func() bool {
		list, err := s.Commands(t.Context())
		return err == nil && !slices.ContainsFunc(list, func(st sandbox.ExecStatus) bool { return !st.Done() })
	})
}

// TestOtherProcess verifies the interaction of two processes of one instance.
func TestOtherProcess(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	opts := &session.Options{Instance: "shared"}
	owner, other := newManager(t, e, opts), newManager(t, e, opts)
	stranger := newManager(t, e, &session.Options{Instance: "stranger"})
	s := mustOpen(t, owner, session.WorkflowKey("run_1", "default"))
	output(t, s, "echo owner > file")
	list := mustList(t, other)
	if len(list) != 1 || list[0].ID != s.ID() || list[0].Key != s.Key() || list[0].Run != "run_1" || list[0].State != session.StateReady {
		t.Fatalf("list %+v", list)
	}
	if list := mustList(t, stranger); len(list) != 0 {
		t.Errorf("another instance sees %+v", list)
	}
	if _, err := stranger.Connect(t.Context(), s.ID()); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("another instance connects: %v", err)
	}
	if err := stranger.Remove(t.Context(), s.ID(), true); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("another instance removes: %v", err)
	}
	v := mustConnect(t, other, s.ID())
	wantOutput(t, v, "cat file; echo $FROM_IMAGE", "owner\nyes\n")
	wantOutput(t, s, "echo still", "still\n")
	if _, err := other.Lookup(t.Context(), s.Key().Scope(), s.ID()); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("a secondary connection's sandbox is found by agents: %v", err)
	}
	must(t, v.Close(t.Context()))
	wantOutput(t, s, "echo still", "still\n")
	must(t, other.Remove(t.Context(), s.ID(), true))
	eventually(t, "the owner learns of it", func() bool { return s.Info().State == session.StateLost })
}

// TestRollbackIsAwaited verifies that new connections wait for the end of a rollback.
func TestRollbackIsAwaited(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	s := mustOpen(t, newManager(t, e, opts), session.WorkflowKey("run_1", "default"))
	var left atomic.Int64
	e.setHooks(nil, nil, func(context.Context, string) error {
		if left.Add(-1) >= 0 {
			return fmt.Errorf("a rollback is in progress: %w", backend.ErrBusy)
		}
		return nil
	})
	left.Store(3)
	v, err := newManager(t, e, opts).Connect(t.Context(), s.ID())
	if err != nil || left.Load() >= 0 {
		t.Fatalf("Connect = %v, with %d failures left", err, left.Load())
	}
	wantOutput(t, v, "echo hello", "hello\n")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	left.Store(1 << 30)
	_, err = newManager(t, e, opts).Connect(ctx, s.ID())
	if !errors.Is(err, backend.ErrBusy) || errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Connect with a deadline = %v, want ErrBusy", err)
	}
}

// TestSecondaryUseCounts verifies that use through a secondary connection counts, even if the owner's reaper ran
// between that use and the end of the idle timeout. An open connection without calls does not count.
func TestSecondaryUseCounts(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	owner, other := newManager(t, e, opts), newManager(t, e, opts)
	clock, theirs := newClock(owner), newClock(other)
	s := mustOpen(t, owner, session.WorkflowKey("run_1", "default"))
	pass := func(d time.Duration) { clock.add(d); theirs.add(d); other.Reap(t.Context()); owner.Reap(t.Context()) }
	mustConnect(t, other, s.ID())
	pass(time.Minute)
	pass(8 * time.Minute)
	v := mustConnect(t, other, s.ID())
	must(t, v.Close(t.Context()))
	pass(30 * time.Second)
	pass(5 * time.Minute)
	if s.Info().State != session.StateReady {
		t.Error("the owner reaped a sandbox that another process had just used")
	}
	pass(10 * time.Minute)
	e.holds(t, 0)
}

// TestLookIsNoUse verifies that a sandbox becomes idle while programs look at it, also in its own process, and that
// looking does not start a stopped sandbox.
func TestLookIsNoUse(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	owner, other := newManager(t, e, opts), newManager(t, e, opts)
	clock, theirs := newClock(owner), newClock(other)
	pass := func(d time.Duration) { clock.add(d); theirs.add(d); other.Reap(t.Context()); owner.Reap(t.Context()) }
	s := mustOpen(t, owner, session.WorkflowKey("run_1", "default"))
	output(t, s, "echo seen > file")
	used := s.Info().LastUsed
	for range 3 {
		pass(3 * time.Minute)
		for _, m := range []*session.Manager{owner, other} {
			v, err := m.Look(t.Context(), s.ID())
			must(t, err)
			content, _, err := v.ReadFileBytes(t.Context(), "file", sandbox.ReadFileOptions{})
			if err != nil || string(content) != "seen\n" {
				t.Errorf("%q, %v", content, err)
			}
			_, err = v.Commands(t.Context())
			must(t, err)
			pass(0) // with an open connection
			must(t, v.Close(t.Context()))
		}
	}
	if rec := recordOf(t, opts.Store, s.ID()); !rec.LastUsed.Equal(used) || !s.Info().LastUsed.Equal(used) {
		t.Errorf("last used %v, %v, want %v", rec.LastUsed, s.Info().LastUsed, used)
	}
	pass(3 * time.Minute)
	e.holds(t, 0)
	req := testImage()
	req.IdlePolicy = record.IdleStop
	named := openAs(t, owner, session.UserKey("box"), req)
	pass(time.Hour)
	for _, m := range []*session.Manager{owner, other} {
		if _, err := m.Look(t.Context(), named.ID()); !errors.Is(err, backend.ErrLost) {
			t.Errorf("Look at a stopped sandbox = %v, want ErrLost", err)
		}
		if _, err := m.Look(t.Context(), "sbx_unknown"); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Look at an unknown sandbox = %v, want ErrNotFound", err)
		}
	}
	if list := mustList(t, other); len(list) != 1 || list[0].State != session.StateStopped {
		t.Errorf("%+v", list)
	}
}

// crowd is an engine. When full is true, no process can be started in its sandboxes.
type crowd struct {
	*engine
	full   *atomic.Bool
	err    error  // error of starting a process; nil if the process exits at once
	answer []byte // output of the process before it exits
}

func (c crowd) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	if !c.full.Load() {
		return c.engine.Dial(ctx, id)
	}
	if c.err != nil {
		return nil, c.err
	}
	ours, theirs := net.Pipe()
	go func() {
		_, _ = wire.ReadMarker(theirs, wire.FromHost) // fails if the host has disconnected, as below
		_, _ = theirs.Write(c.answer)
		_ = theirs.Close()
	}()
	return ours, nil
}

// TestCrowdedSandbox verifies that the error does not blame the engine if no process can be started in a running
// sandbox.
func TestCrowdedSandbox(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		err    error
		answer []byte
		want   error
	}{
		"ended":     {nil, nil, backend.ErrCapacity},
		"none":      {errors.New("unable to start container process"), nil, backend.ErrCapacity},
		"down":      {fmt.Errorf("connect: %w", backend.ErrUnavailable), nil, backend.ErrUnavailable},
		"old guest": {nil, wire.AppendMarker(nil, wire.FromGuest, 1), backend.ErrVersion},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			e := crowd{newEngine(t), new(atomic.Bool), c.err, c.answer}
			req := testImage()
			req.Limits.PIDs = 64
			opts := shared()
			s, _, err := newManager(t, e, opts).Open(t.Context(), session.UserKey("busy"), req)
			must(t, err)
			e.full.Store(true)
			_, err = newManager(t, e, opts).Connect(t.Context(), s.ID())
			for _, kind := range []error{backend.ErrCapacity, backend.ErrUnavailable, backend.ErrProtocol} {
				if errors.Is(err, kind) != errors.Is(c.want, kind) {
					t.Errorf("Connect = %v, want %v", err, c.want)
				}
			}
		})
	}
}
