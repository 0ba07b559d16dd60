// Package conformance verifies that sessions of package session behave the same on every engine. The tests of package
// session verify the behavior with plain processes. These tests verify that no engine changes it.
//
// WORKCELL_TEST_BACKEND selects one engine: docker, containerd, local, or kubernetes. By default, all of them except
// kubernetes are tested, because kubernetes requires `make cluster`.
package conformance

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/sessiontest"
)

var must = checktest.Must

// Images built by `make images`.
const debianImage, pythonImage = "workcell/debian:12", "workcell/python:3.11"

// patience is the maximum wait for an expected event. Hosts with running tests may be very busy.
const patience = 3 * time.Minute

func TestMain(m *testing.M) { os.Exit(enginetest.Tests{M: m}.Run()) }

// engine opens backends of one installation.
type engine struct{ name, dir string }

// on runs a test on each engine in parallel.
func on(t *testing.T, test func(t *testing.T, e engine)) {
	enginetest.On(t, func(t *testing.T, name string) { test(t, engine{name, privateDir(t)}) })
}

func privateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	return dir
}

// connect opens a backend, like a process would, until the end of the test.
func (e engine) connect(t testing.TB) backend.SandboxBackend {
	t.Helper()
	b, err := enginetest.Open(e.name, e.dir)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

// manager opens a manager with a new instance. At the end of the test, it checks for leftover sandboxes.
func manager(t testing.TB, b backend.SandboxBackend, opts session.Options) *session.Manager {
	t.Helper()
	if opts.Instance == "" {
		opts.Instance = "conformance-" + record.NewID()
	}
	return enginetest.Manager(t, b, &opts)
}

func request() session.Request { return session.Request{Image: debianImage, Pull: backend.PullNever} }

func open(t testing.TB, m *session.Manager, key session.Key, req session.Request) *session.Session {
	t.Helper()
	s, _, err := m.Open(t.Context(), key, req)
	must(t, err)
	return s
}

// output runs a shell command, which must succeed, and returns the output.
func output(t testing.TB, s *session.Session, command string) string {
	t.Helper()
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: command})
	if err != nil || res.ExitCode != 0 || res.Status != sandbox.ExecCompleted {
		t.Fatalf("%s: %+v, %s, %v", command, res.ExecStatus, res.Stderr.Bytes(), err)
	}
	return string(res.Stdout.Bytes())
}

func TestExec(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		req := sessiontest.ExecRequest(debianImage)
		req.Pull = backend.PullNever
		sessiontest.Exec(t, open(t, manager(t, e.connect(t), session.Options{}), session.UserKey("exec"), req))
	})
}

// TestPool verifies pooled sandboxes on engines with immutable labels.
func TestPool(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		b, instance := e.connect(t), "conformance-"+record.NewID()
		t.Cleanup(func() {
			if left, err := b.List(context.Background(), backend.Filter{Instance: instance}); err != nil || len(left) != 0 {
				t.Errorf("left: %+v, %v", left, err)
			}
		})
		sessiontest.Pool(t, b, instance, request())
	})
}

func TestDiff(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		sessiontest.Diff(t, open(t, manager(t, e.connect(t), session.Options{}), session.UserKey("diff"), request()))
	})
}

func TestFiles(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		m := manager(t, e.connect(t), session.Options{MaxFileBytes: sessiontest.FileLimit})
		sessiontest.Files(t, open(t, m, session.UserKey("files"), request()))
	})
}

// TestLifecycle: named sandboxes are stopped, started, and rebuilt.
func TestLifecycle(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		b, instance := e.connect(t), "conformance-"+record.NewID()
		sessiontest.Lifecycle(t, b, instance, request(), pythonImage)
	})
}

// TestLost verifies sandboxes damaged by another program. Their files are kept if the backend supports it.
func TestLost(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		m, other := manager(t, e.connect(t), session.Options{}), e.connect(t)
		remove := func(ctx context.Context, id string) error {
			return other.Remove(ctx, id, backend.RemoveOptions{Volumes: true})
		}
		for name, test := range map[string]struct {
			key  session.Key
			ruin func(ctx context.Context, id string) error
			kept bool
		}{
			"stopped":       {record.AgentKey("run_1", "stopped"), other.Stop, other.Capabilities().Persistent},
			"run's stopped": {record.WorkflowKey("run_1", "stopped"), other.Stop, other.Capabilities().Persistent},
			"removed":       {record.WorkflowKey("run_1", "removed"), remove, false},
		} {
			key := test.key
			s := open(t, m, key, request())
			running := make(chan error, 1)
			go func() {
				_, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "touch began; sleep 1000"})
				running <- err
			}()
			for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
				if _, err := s.StatFile(t.Context(), "began"); err == nil {
					break
				} else if time.Now().After(end) {
					t.Fatalf("%s: the command does not begin: %v", name, err)
				}
			}
			must(t, test.ruin(t.Context(), s.Info().EngineID))
			if err := <-running; !errors.Is(err, backend.ErrLost) {
				t.Errorf("%s: the running command: %v, want ErrLost", name, err)
			}
			if _, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "true"}); !errors.Is(err, backend.ErrLost) || s.Info().State != session.StateLost {
				t.Errorf("%s: the next call: %v in state %s", name, err, s.Info().State)
			}
			fresh, created, err := m.Open(t.Context(), key, request())
			if err != nil || created == test.kept || (fresh.ID() == s.ID()) != test.kept {
				t.Fatalf("%s: Open after the loss: %v, new %v, %v", name, fresh, created, err)
			}
			if got := output(t, fresh, "ls -A -I .workcell"); (got == "began\n") != test.kept || !test.kept && got != "" {
				t.Errorf("%s: the sandbox holds %q", name, got)
			}
		}
	})
}

// TestLimitsShow: reaching the memory or workspace limit is an event of the command's span on every engine.
func TestLimitsShow(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		exporter := tracetest.NewInMemoryExporter()
		tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
		t.Cleanup(func() { must(t, tp.Shutdown(context.Background())) })
		m := manager(t, e.connect(t), session.Options{TracerProvider: tp})
		req := request()
		req.Limits.MemoryBytes, req.Limits.WorkspaceBytes = 64<<20, 64<<20
		s := open(t, m, session.UserKey("hog"), req)
		res, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"tail", "/dev/zero"}}) // one endless line
		must(t, err)
		if res.Status != sandbox.ExecOOMKilled {
			t.Errorf("status %s", res.Status)
		}
		res, err = s.Exec(t.Context(), sandbox.ExecRequest{Command: "dd if=/dev/zero of=/workspace/fill bs=1M count=200; sleep 2"})
		must(t, err)
		if !res.QuotaExceeded {
			t.Errorf("the workspace was not full: %+v", res.ExecStatus)
		}
		must(t, s.Close(t.Context()))
		var events []string
		for _, span := range exporter.GetSpans() {
			if span.Name == "session.Exec" {
				for _, event := range span.Events {
					events = append(events, event.Name)
				}
			}
		}
		if want := []string{"workcell.oom_kill", "workcell.quota"}; !slices.Equal(events, want) {
			t.Errorf("events %q, want %q", events, want)
		}
	})
}

// TestService: commands can connect to the host, and to another process with a service for the same sandbox.
func TestService(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		b, opts := e.connect(t), session.Options{Instance: "conformance-" + record.NewID(), Store: record.NewMemoryStore()}
		req := request()
		req.Image = pythonImage
		s := open(t, manager(t, b, opts), session.UserKey("service"), req)
		sessiontest.Service(t, s, func() *session.Session {
			other, err := session.NewManager(b, &opts)
			must(t, err)
			t.Cleanup(func() { must(t, other.Close(context.Background())) })
			v, err := other.Connect(t.Context(), s.ID())
			must(t, err)
			return v
		})
	})
}

// TestSnapshots verifies rollback of a session's files, and new sessions from a snapshot, on every engine.
func TestSnapshots(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		m := manager(t, e.connect(t), session.Options{})
		if e.name == "kubernetes" {
			if _, err := open(t, m, session.UserKey("kept"), request()).Snapshot(t.Context(), "one"); !errors.Is(err, backend.ErrUnsupported) {
				t.Errorf("Snapshot: %v, want ErrUnsupported", err)
			}
			return
		}
		sessiontest.RunSnapshots(t, m, request())
	})
}
