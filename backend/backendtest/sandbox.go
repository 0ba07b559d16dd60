package backendtest

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// backend returns a new backend. The end of the test closes it.
func (s *suite) backend(t testing.TB) backend.SandboxBackend { return Closing(t, s.h.New(t), nil) }

// spec returns the spec of a sandbox in the suite's instance.
func (s *suite) spec() backend.Spec { return Spec(s.instance, s.h.Debian) }

// lone returns the spec of a sandbox in a separate instance. At the end of the test, the instance must have no objects.
func (s *suite) lone(t testing.TB) backend.Spec {
	t.Helper()
	spec := s.spec()
	spec.Instance = freshInstance()
	t.Cleanup(func() { s.nothingLeft(t, spec.Instance) })
	return spec
}

// create creates a sandbox. The end of the test removes it.
func (s *suite) create(t testing.TB, spec backend.Spec) backend.Info {
	t.Helper()
	return Create(t, s.b, spec)
}

// tried returns the error of a creation. If the creation succeeds, tried removes the sandbox.
func (s *suite) tried(t testing.TB, spec backend.Spec) error {
	t.Helper()
	info, err := s.b.Create(t.Context(), spec)
	if err == nil {
		Remove(t, s.b, info.ID)
	}
	return err
}

// nothingLeft fails the test if objects of an instance remain.
func (s *suite) nothingLeft(t testing.TB, instance string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	var left []string
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if left, err = s.h.Leftovers(ctx, instance); err == nil && len(left) == 0 {
			return
		}
	}
	t.Errorf("left of instance %s: %q, %v", instance, left, err)
}

// sharedSandbox is created on first use and removed after all tests. Tests with it only read, or write to separate
// directories.
type sharedSandbox struct {
	once sync.Once
	info backend.Info
	conn *client.Conn
	err  error
}

// share returns a sandbox with default settings and a connection. Other tests use both concurrently.
func (s *suite) share(t testing.TB, shared *sharedSandbox, image string) (backend.Info, *client.Conn) {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		if shared.info, shared.err = s.b.Create(ctx, Spec(s.instance, image)); shared.err != nil {
			return
		}
		s.root.Cleanup(func() { Remove(s.root, s.b, shared.info.ID) })
		var rw io.ReadWriteCloser
		if rw, shared.err = s.b.Dial(ctx, shared.info.ID); shared.err != nil {
			return
		}
		if shared.conn, shared.err = client.New(ctx, rw); shared.err == nil {
			s.root.Cleanup(func() { _ = shared.conn.Close() })
		}
	})
	if shared.err != nil {
		t.Fatalf("the shared sandbox: %v", shared.err)
	}
	return shared.info, shared.conn
}

// inPython returns the shared sandbox with a Python interpreter.
func (s *suite) inPython(t testing.TB) (backend.Info, *client.Conn) {
	t.Helper()
	return s.share(t, &s.python, s.h.Python)
}

// inDebian returns the shared sandbox with a shell.
func (s *suite) inDebian(t testing.TB) (backend.Info, *client.Conn) {
	t.Helper()
	return s.share(t, &s.debian, s.h.Debian)
}

// dial returns a connection to the guest agent of a sandbox. The end of the test closes it.
func (s *suite) dial(t testing.TB, id string) *client.Conn {
	t.Helper()
	return Dial(t, s.b, id)
}

// Spec returns the spec of a sandbox in an instance.
func Spec(instance, image string) backend.Spec {
	id := "sbx_" + strings.ToLower(rand.Text())
	return backend.Spec{
		ID: id, Instance: instance, Key: "user:" + id, Run: "run_" + id, Hash: "hash", Image: image, Pull: backend.PullNever,
	}
}

// Create creates a sandbox. The end of the test removes it.
func Create(t testing.TB, b backend.SandboxBackend, spec backend.Spec) backend.Info {
	t.Helper()
	info, err := b.Create(t.Context(), spec)
	must(t, err)
	t.Cleanup(func() { Remove(t, b, info.ID) })
	return info
}

// Remove removes a sandbox and its workspace. It can be called in cleanup functions.
func Remove(t testing.TB, b backend.SandboxBackend, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	Fails(t, "Remove", b.Remove(ctx, id, backend.RemoveOptions{Volumes: true}), nil)
}

// Calls returns calls of a backend by name. Calls for a sandbox use id.
func Calls(b backend.SandboxBackend, id string, spec func() backend.Spec) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Create": func(ctx context.Context) error { return second(b.Create(ctx, spec())) },
		"Get":    func(ctx context.Context) error { return second(b.Get(ctx, id)) },
		"List":   func(ctx context.Context) error { return second(b.List(ctx, backend.Filter{})) },
		"Start":  func(ctx context.Context) error { return b.Start(ctx, id) },
		"Stop":   func(ctx context.Context) error { return b.Stop(ctx, id) },
		"Remove": func(ctx context.Context) error { return b.Remove(ctx, id, backend.RemoveOptions{}) },
		"Dial":   func(ctx context.Context) error { return second(b.Dial(ctx, id)) },
		"Ping":   func(ctx context.Context) error { return second(b.Ping(ctx)) },
	}
}

// Closing takes the results of a constructor and returns the backend. The end of the test closes it.
func Closing[B backend.SandboxBackend](t testing.TB, b B, err error) B {
	t.Helper()
	must(t, err)
	t.Cleanup(func() { Fails(t, "Close", b.Close(), nil) })
	return b
}

// Dial returns a connection to the guest agent of a sandbox. The end of the test closes it.
func Dial(t testing.TB, b backend.SandboxBackend, id string) *client.Conn {
	t.Helper()
	rw, err := b.Dial(t.Context(), id)
	return Connect(t, rw, err)
}

// Connect connects to the guest agent over a stream. The end of the test closes the connection.
func Connect(t testing.TB, rw io.ReadWriteCloser, err error) *client.Conn {
	t.Helper()
	must(t, err)
	conn, err := client.New(t.Context(), rw)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// environment returns the default environment of commands.
func environment() []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + backend.Workdir, "LANG=C.UTF-8"}
}

// command describes a command with a long timeout. Short output is returned completely.
func command(argv ...string) wire.RunRequest {
	return wire.RunRequest{
		Spawn:  wire.Spawn{Argv: argv, Env: environment(), TimeoutMillis: (2 * patience).Milliseconds()},
		ExecID: rand.Text(), YieldMillis: -1, HeadBytes: 256 << 10, TailBytes: 64 << 10,
	}
}

// Exec runs a command and waits for it to exit.
func Exec(t testing.TB, conn *client.Conn, argv ...string) wire.RunResult {
	t.Helper()
	return request(t, conn, command(argv...))
}

func request(t testing.TB, conn *client.Conn, req wire.RunRequest) wire.RunResult {
	t.Helper()
	res, err := conn.Run(t.Context(), req)
	if err != nil {
		t.Fatalf("%q: %v", req.Argv, err)
	}
	return res
}

// Output runs a command and returns the output. The command must succeed.
func Output(t testing.TB, conn *client.Conn, argv ...string) string {
	t.Helper()
	res := Exec(t, conn, argv...)
	if res.ExitCode != 0 || res.Signal != "" || res.State != wire.ExecCompleted {
		t.Fatalf("%q: %+v\n%s%s", argv, res.ExecStatus, res.Stdout.Head, res.Stderr.Head)
	}
	return string(res.Stdout.Head) + string(res.Stdout.Tail)
}

// Sh runs a script and returns the output. The script must succeed.
func Sh(t testing.TB, conn *client.Conn, script string) string {
	t.Helper()
	return Output(t, conn, "/bin/sh", "-c", script)
}

// Prints runs a script, which must succeed, and checks the output.
func Prints(t testing.TB, conn *client.Conn, script, want string) {
	t.Helper()
	if got := Sh(t, conn, script); got != want {
		t.Errorf("%s\nprinted %q, want %q", script, got, want)
	}
}

// second returns the error of a call with two results.
func second[T any](_ T, err error) error { return err }

// Eventually waits until ok returns true.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// Fails fails the test if err does not match want.
func Fails(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
