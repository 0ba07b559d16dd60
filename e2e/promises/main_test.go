//go:build linux

// Package promises attacks the product the way an agent, a user or the code that they run could, on a real engine:
// through the tools, the session API and the command line. Each test is named after the row of docs/guarantees.md that
// it holds the product to.
//
// WORKCELL_TEST_BACKEND names the engine: docker (the default), containerd, local or kubernetes. Where one is made
// without what a test is about, such as images, the test asserts that asking for it is refused.
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

// Images that `make images` builds.
const (
	pythonImage = "workcell/python:3.11"
	debianImage = "workcell/debian:12"
)

// hostCanary is a variable of this process that no sandbox may ever see.
const hostCanary = "PROMISES_HOST_CANARY"

// world is what all tests share. It is made before the first test and never changed.
type world struct {
	instance string // begins the instance of everything that the tests make
	name     string // of the engine
	engine   engine
	driver   backend.SandboxBackend
	manager  *session.Manager
	plugin   *tools.Plugin
	log      *buffertest.Buffer // of manager and plugin
	dir      string             // for the command line's binary and state
	cli      func() (string, error)

	// user and root are sandboxes for tests that leave them as they were: the default one, and one whose user is root
	// and whose whole file system can be written to, where the engine has such users. The others are the same with a
	// network, where the engine has one.
	user, root, bridgedUser, bridgedRoot *testSandbox
}

var w *world

func TestMain(m *testing.M) {
	clocktest.Main()
	// Genkit sets a global provider of its own at the first span unless there is one.
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
	// Background jobs of a shell and nohup have signals ignored, which children inherit: the command line would not
	// get those that tests send. What is caught here is not ignored there.
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

// leaveOut has tests not run.
func leaveOut(names []string) error {
	skip := flag.Lookup("test.skip").Value
	pattern := "^(" + strings.Join(names, "|") + ")$"
	if also := skip.String(); also != "" {
		pattern += "|" + also
	}
	return skip.Set(pattern)
}

// end closes everything and looks for what is left of it.
func (v *world) end(ctx context.Context) error {
	err := errors.Join(v.manager.Close(ctx), v.driver.Close())
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		left, lerr := v.engine.left(ctx, v.instance)
		if lerr == nil && len(left) > 0 {
			lerr = fmt.Errorf("left on the engine:\n%s", strings.Join(left, "\n"))
		}
		if lerr == nil || time.Now().After(deadline) { // the last clean-up runs beside the call that asked for it
			err = errors.Join(err, lerr)
			break
		}
	}
	return errors.Join(err, v.engine.close(), os.RemoveAll(v.dir))
}

// stateDir makes a state directory for the command line, whose sandboxes then carry the given instance.
func (v *world) stateDir(t testing.TB, instance string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "instance"), []byte(instance+"\n"), 0o600))
	return dir
}
