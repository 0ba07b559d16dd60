//go:build linux

// Package promises attacks the product like an agent, a user, or their code could, on a real engine: through the tools,
// the session API, and the command line. Each test has the name of a row in docs/security/guarantees.md.
//
// WORKCELL_TEST_BACKEND selects the engine: docker (the default), containerd, local, or kubernetes. If an engine does
// not support the feature of a test, for example images, the test verifies the rejection of requests for the feature.
package promises

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/clocktest"
	"github.com/workcell-dev/workcell/internal/commandtest"
	"github.com/workcell-dev/workcell/internal/leaktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// Images built by `make images`.
const (
	pythonImage = "workcell/python:3.11"
	debianImage = "workcell/debian:12"
)

// hostCanary is a variable of this process, which no sandbox must ever see.
const hostCanary = "PROMISES_HOST_CANARY"

// world is the shared state of all tests. It is created before the first test and never changed.
type world struct {
	instance string // prefix of the instances of everything created by the tests
	name     string // engine name
	engine   engine
	driver   backend.SandboxBackend
	manager  *session.Manager
	plugin   *tools.Plugin
	log      *buffertest.Buffer // log of manager and plugin
	dir      string             // directory for the command line's binary and state
	cli      func() (string, error)

	// user and root are shared sandboxes for tests that do not change them. user is the default sandbox. root runs as
	// root with a writable root file system, if the engine supports it. The others are the same with a network, if the
	// engine supports networks.
	user, root, bridgedUser, bridgedRoot *testSandbox
}

var w *world

func TestMain(m *testing.M) {
	clocktest.Main()
	// Without a global provider, Genkit sets one at the first span.
	otel.SetTracerProvider(sdktrace.NewTracerProvider())
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "promises:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	if err := os.Setenv(hostCanary, "seen"); err != nil {
		return 1, err
	}
	// Background jobs of a shell and nohup ignore signals. Child processes would inherit this, and the command line
	// would not receive the signals of the tests. Child processes do not ignore signals caught here.
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	if w, err = newWorld(context.Background()); err != nil {
		return 1, fmt.Errorf("these tests need an engine with the test images (make engine images): %w", err)
	}
	if c, ok := w.engine.(clustered); ok {
		if err := leaveOut(c.cannot()); err != nil {
			return 1, err
		}
	}
	code = m.Run()
	err = w.end(context.Background())
	if code == 0 && err == nil {
		err = leaktest.Find(enginetest.Leaks()...)
	}
	return code, err
}

func newWorld(ctx context.Context) (*world, error) {
	v := &world{instance: "promises" + record.NewID(), log: &buffertest.Buffer{}}
	v.cli = sync.OnceValues(func() (string, error) { return commandtest.Build(v.dir) })
	var err error
	if v.dir, err = os.MkdirTemp("", "promises-"); err != nil {
		return nil, err
	}
	if v.name, v.engine, err = openEngine(v.dir); err != nil {
		return nil, err
	}
	if v.driver, err = v.engine.connect(ctx, connection{}); err != nil {
		return nil, err
	}
	logger := slog.New(slog.NewTextHandler(v.log, nil))
	v.manager, err = session.NewManager(v.driver, &session.Options{Instance: v.instance, AllowRoot: true, Logger: logger, IdleTimeout: time.Hour})
	if err != nil {
		return nil, err
	}
	v.plugin = &tools.Plugin{Manager: v.manager, Logger: logger}
	if err := v.open(ctx); err != nil {
		return nil, errors.Join(err, v.end(ctx))
	}
	return v, nil
}

// open opens the shared sandboxes.
func (v *world) open(ctx context.Context) error {
	var g errgroup.Group
	_, cluster := v.engine.(clustered)
	sandboxes := map[**testSandbox]tools.Sandbox{&v.user: pythonSandbox()}
	if !cluster {
		sandboxes[&v.root] = rootSandbox()
	}
	if slices.Contains(v.driver.Capabilities().Networks, backend.NetworkBridge) {
		sandboxes[&v.bridgedUser] = bridged(pythonSandbox())
		if !cluster {
			sandboxes[&v.bridgedRoot] = bridged(rootSandbox())
		}
	}
	for b, cfg := range sandboxes {
		g.Go(func() error {
			var err error
			*b, err = openSandbox(ctx, v.manager, v.plugin, cfg)
			return err
		})
	}
	return g.Wait()
}

// leaveOut skips tests.
func leaveOut(names []string) error {
	skip := flag.Lookup("test.skip").Value
	pattern := "^(" + strings.Join(names, "|") + ")$"
	if also := skip.String(); also != "" {
		pattern += "|" + also
	}
	return skip.Set(pattern)
}

// end closes everything and checks for leftovers.
func (v *world) end(ctx context.Context) error {
	err := errors.Join(v.manager.Close(ctx), v.driver.Close())
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		left, lerr := v.engine.left(ctx, v.instance)
		if lerr == nil && len(left) > 0 {
			lerr = fmt.Errorf("left on the engine:\n%s", strings.Join(left, "\n"))
		}
		if lerr == nil || time.Now().After(deadline) { // the last cleanup runs concurrently with the requesting call
			err = errors.Join(err, lerr)
			break
		}
	}
	return errors.Join(err, v.engine.close(), os.RemoveAll(v.dir))
}

// stateDir returns a new state directory for the command line, with the given instance.
func (v *world) stateDir(t testing.TB, instance string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "instance"), []byte(instance+"\n"), 0o600))
	return dir
}
