package backendtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sessiontest"
)

func sessionChecks() []check {
	return []check{
		{"100 opens of one key", (*suite).concurrentOpens},
		{"a run ends", (*suite).runEnds},
		{"close under load", (*suite).closeUnderLoad},
		{"cancelled open", (*suite).cancelledOpen},
		{"lost", (*suite).lostSessions},
		{"another process", (*suite).visitor},
		{"life of named sandboxes", (*suite).lifecycle},
		{"secrets", (*suite).secrets},
		{"spans", (*suite).spans},
	}
}

// office is a session manager with an instance of its own.
type office struct {
	*session.Manager
	s        *suite
	instance string
}

// office opens a manager that the test's end closes; then nothing of its instance may be left.
func (s *suite) office(t *testing.T, opts session.Options) *office {
	t.Helper()
	opts.Instance = freshInstance()
	t.Cleanup(func() { s.nothingLeft(t, opts.Instance) })
	return &office{s.manager(t, s.b, opts), s, opts.Instance}
}

func (s *suite) manager(t *testing.T, b backend.SandboxBackend, opts session.Options) *session.Manager {
	t.Helper()
	m, err := session.NewManager(b, &opts)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	return m
}

// open opens a sandbox that has a shell.
func (o *office) open(t *testing.T, key session.Key) *session.Session {
	t.Helper()
	s, _, err := o.Open(t.Context(), key, o.request())
	must(t, err)
	return s
}

func (o *office) request() session.Request {
	return session.Request{Image: o.s.h.Debian, Pull: backend.PullNever}
}

// sandboxes counts what the engine has of the instance.
func (o *office) sandboxes(t *testing.T) int {
	t.Helper()
	list, err := o.s.b.List(context.Background(), backend.Filter{Instance: o.instance})
	must(t, err)
	return len(list)
}

func (s *suite) exec(t *testing.T) {
	o := s.office(t, session.Options{})
	req := sessiontest.ExecRequest(s.h.Debian)
	req.Pull = backend.PullNever
	x, _, err := o.Open(t.Context(), session.WorkflowKey("run_1", "default"), req)
	must(t, err)
	t.Run("cases", func(t *testing.T) { sessiontest.Exec(t, x) })
}

func (s *suite) files(t *testing.T) {
	o := s.office(t, session.Options{MaxFileBytes: sessiontest.FileLimit})
	x := o.open(t, session.WorkflowKey("run_1", "default"))
	t.Run("cases", func(t *testing.T) { sessiontest.Files(t, x) })
	_, err := x.MakeDir(t.Context(), "owned", 0)
	must(t, err)
	want := "1000:1000 755\n"
	if got := inShell(t, x, "stat -c '%u:%g %a' owned"); got != want {
		t.Errorf("owner and mode %q, want %q", got, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *suite) concurrentOpens(t *testing.T) {
	o := s.office(t, session.Options{})
	key := session.WorkflowKey("run_1", "default")
	ids := make([]string, 100)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			s, _, err := o.Open(t.Context(), key, o.request())
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = s.ID()
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("%s and %s for one key", id, ids[0])
		}
	}
	if n := o.sandboxes(t); n != 1 {
		t.Errorf("the engine has %d sandboxes", n)
	}
	must(t, o.CloseScope(t.Context(), key.Scope()))
	s.nothingLeft(t, o.instance)
}

// runEnds closes one run of two; with a cancelled context, as after Ctrl-C.
func (s *suite) runEnds(t *testing.T) {
	o := s.office(t, session.Options{})
	first, second := session.Run{Namespace: "workflow", ID: "run_1"}, session.Run{Namespace: "workflow", ID: "run_2"}
	var wg sync.WaitGroup
	for _, key := range []session.Key{first.Key("a"), first.Key("b"), second.Key("a")} {
		wg.Go(func() {
			if _, _, err := o.Open(t.Context(), key, o.request()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	old := o.InScope(first.Scope())[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, o.CloseScope(ctx, first.Scope()))
	if n := o.sandboxes(t); n != 1 {
		t.Errorf("%d sandboxes, want the other run's", n)
	}
	if got := inShell(t, o.InScope(second.Scope())[0], "echo alive"); got != "alive\n" {
		t.Errorf("output %q", got)
	}
	if _, err := o.Lookup(t.Context(), first.Scope(), old.ID()); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Lookup of a closed id: %v, want ErrClosed", err)
	}
	if _, _, err := o.Open(t.Context(), first.Key("a"), o.request()); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Open in a run that has ended: %v, want ErrClosed", err)
	}
}

// inShell runs a shell command that must succeed in a session, and gives its output.
func inShell(t testing.TB, s *session.Session, line string) string {
	t.Helper()
	res, err := s.Exec(t.Context(), session.ExecRequest{Command: line})
	if err != nil || res.ExitCode != 0 || res.Status != session.ExecCompleted {
		t.Fatalf("%s: %+v, %s, %v", line, res.ExecStatus, res.Stderr.Bytes(), err)
	}
	return string(res.Stdout.Bytes())
}

// closeUnderLoad closes a session with calls under way.
func (s *suite) closeUnderLoad(t *testing.T) {
	o := s.office(t, session.Options{})
	x := o.open(t, session.WorkflowKey("run_1", "default"))
	stdin, feedStdin := io.Pipe()
	file, feedFile := io.Pipe()
	defer feedStdin.Close() //nolint:errcheck // never fails
	defer feedFile.Close()  //nolint:errcheck // never fails
	ended := make(chan error, 3)
	go func() {
		_, err := x.Exec(t.Context(), session.ExecRequest{Command: "touch exec; sleep 1000"})
		ended <- err
	}()
	go func() {
		_, err := x.Stream(t.Context(), session.ExecRequest{Command: "touch stream; cat"}, session.Streams{Stdin: stdin})
		ended <- err
	}()
	go func() {
		_, err := x.WriteFile(t.Context(), "endless", file, session.WriteFileOptions{})
		ended <- err
	}()
	_, err := feedFile.Write([]byte("x")) // returns when it was read
	must(t, err)
	eventually(t, "the commands to run", func() bool {
		_, err1 := x.StatFile(t.Context(), "exec")
		_, err2 := x.StatFile(t.Context(), "stream")
		return err1 == nil && err2 == nil
	})
	must(t, x.Close(t.Context()))
	for range 3 {
		select {
		case err := <-ended:
			if !errors.Is(err, backend.ErrClosed) {
				t.Errorf("a call under way: %v, want ErrClosed", err)
			}
		case <-time.After(patience):
			t.Fatal("a call is still under way")
		}
	}
	s.nothingLeft(t, o.instance)
}

// cancelledOpen cancels opens after different times.
func (s *suite) cancelledOpen(t *testing.T) {
	o := s.office(t, session.Options{})
	for i := range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*4*time.Millisecond)
		x, _, err := o.Open(ctx, session.WorkflowKey(fmt.Sprintf("run_%d", i), "default"), o.request())
		cancel()
		if err == nil {
			must(t, x.Close(t.Context()))
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Open: %v, want context.DeadlineExceeded", err)
		}
	}
	s.nothingLeft(t, o.instance)
}

// lostSessions ruins sandboxes behind the manager's back.
func (s *suite) lostSessions(t *testing.T) {
	o := s.office(t, session.Options{})
	other := s.backend(t)
	for name, ruin := range map[string]func(t *testing.T, x *session.Session) error{
		"removed": func(t *testing.T, x *session.Session) error { return s.h.Vanish(t.Context(), x.Info().EngineID) },
		"killed": func(t *testing.T, x *session.Session) error {
			return killMain(t, inShell(t, x, "readlink /proc/self/ns/pid"))
		},
		"stopped": func(t *testing.T, x *session.Session) error { return other.Stop(t.Context(), x.Info().EngineID) },
	} {
		t.Run(name, func(t *testing.T) {
			key := session.WorkflowKey("run_1", name)
			x := o.open(t, key)
			running := make(chan error, 1)
			go func() {
				_, err := x.Exec(t.Context(), session.ExecRequest{Command: "touch began; sleep 1000"})
				running <- err
			}()
			eventually(t, "a command to run", func() bool { _, err := x.StatFile(t.Context(), "began"); return err == nil })
			must(t, ruin(t, x))
			if err := <-running; !errors.Is(err, backend.ErrLost) {
				t.Errorf("the command under way: %v, want ErrLost", err)
			}
			if _, err := x.Exec(t.Context(), session.ExecRequest{Argv: []string{"true"}}); !errors.Is(err, backend.ErrLost) || x.Info().State != session.StateLost {
				t.Errorf("the next call: %v in state %s", err, x.Info().State)
			}
			fresh, created, err := o.Open(t.Context(), key, o.request())
			if err != nil || !created || fresh.ID() == x.ID() {
				t.Fatalf("Open after the loss: %v, %v, %v", fresh, created, err)
			}
			if got := inShell(t, fresh, "ls -A"); got != "" {
				t.Errorf("the fresh sandbox holds %q", got)
			}
		})
	}
}

// visitor works in a sandbox beside its owner.
func (s *suite) visitor(t *testing.T) {
	o := s.office(t, session.Options{})
	v := s.manager(t, s.backend(t), session.Options{Instance: o.instance})
	x := o.open(t, session.WorkflowKey("run_1", "default"))
	inShell(t, x, "echo owner > file")
	list, err := v.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != x.ID() || list[0].Backend != s.h.Name {
		t.Fatalf("list %+v, %v", list, err)
	}
	engineID := x.Info().EngineID
	for _, id := range []string{engineID, engineID[:len(engineID)/2], x.ID()[:12]} {
		if _, err := v.Connect(t.Context(), id); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Connect(%s): %v, want ErrNotFound", id, err)
		}
	}
	beside, err := v.Connect(t.Context(), x.ID())
	must(t, err)
	running := make(chan error, 1)
	go func() {
		_, err := x.Exec(t.Context(), session.ExecRequest{Command: "while [ ! -e stop ]; do sleep 0.05; done"})
		running <- err
	}()
	if got := inShell(t, beside, "cat file; touch stop"); got != "owner\n" {
		t.Errorf("output %q", got)
	}
	must(t, <-running)
	must(t, beside.Close(t.Context()))
	if got := inShell(t, x, "echo still"); got != "still\n" {
		t.Errorf("output %q", got)
	}
	must(t, v.Remove(t.Context(), x.ID(), true))
	eventually(t, "the owner to learn of it", func() bool { return x.Info().State == session.StateLost })
}

// lifecycle checks idle policies and rebuilds.
func (s *suite) lifecycle(t *testing.T) {
	instance := freshInstance()
	t.Cleanup(func() { s.nothingLeft(t, instance) })
	sessiontest.Lifecycle(t, s.b, instance, session.Request{Image: s.h.Debian, Pull: backend.PullNever}, s.h.Python)
}

func (s *suite) secrets(t *testing.T) {
	sessiontest.Secrets(t, s.b, s.h.Describe, session.Request{Image: s.h.Debian, Pull: backend.PullNever})
}

// spans checks that the driver's spans are children of the session's.
func (s *suite) spans(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	t.Cleanup(func() { must(t, tp.Shutdown(context.Background())) })
	o := s.office(t, session.Options{TracerProvider: tp})
	must(t, o.open(t, session.WorkflowKey("run_1", "default")).Close(t.Context()))
	names, parents := map[string]string{}, map[string]string{}
	for _, span := range exporter.GetSpans() {
		names[span.SpanContext.SpanID().String()] = span.Name
		parents[span.Name] = span.Parent.SpanID().String()
	}
	for verb, parent := range map[string]string{"Create": "session.Open", "Dial": "session.Open", "Remove": "session.Close"} {
		if child := s.h.Name + "." + verb; names[parents[child]] != parent {
			t.Errorf("the parent of %s is %q, want %s", child, names[parents[child]], parent)
		}
	}
}
