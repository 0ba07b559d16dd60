// Package promises attacks the product the way an agent, a user or the code that they run could, on a real Docker
// Engine: through the tools, the session API and the command line. Each test is named after the row of
// docs/guarantees.md that it holds the product to.
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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	dockerclient "github.com/docker/docker/client"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/session"
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
	instance string // begins the instance label of everything that the tests make
	engine   *docker.Backend
	api      *dockerclient.Client
	manager  *session.Manager
	plugin   *tools.Plugin
	log      *buffer // of manager and plugin
	dir      string  // for the command line's binary and state
	cli      func() (string, error)

	// user and root are sandboxes for tests that leave them as they were: the default one, and one whose user is root
	// and whose whole file system can be written to. The others are the same with a network.
	user, root, bridgedUser, bridgedRoot *box
}

var w *world

func TestMain(m *testing.M) {
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
	// A shell's background jobs and nohup have signals ignored, which children inherit: the command line would not
	// hear those that tests send. What is caught here is not ignored there.
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	if w, err = newWorld(context.Background()); err != nil {
		return 1, fmt.Errorf("these tests need a Docker Engine with the test images (make images): %w", err)
	}
	if !flag.Parsed() {
		flag.Parse()
	}
	built := make(chan struct{})
	go func() { // it takes a while, which is well spent beside what only waits for the engine
		defer close(built)
		if flag.Lookup("test.run").Value.String() == "" {
			_, _ = w.cli() // who needs it gets the error
		}
	}()
	code = m.Run()
	<-built
	err = w.end(context.Background())
	if code == 0 && err == nil {
		deadline := time.Now().Add(patience)
		for err = goleak.Find(); err != nil && time.Now().Before(deadline); err = goleak.Find() {
			time.Sleep(100 * time.Millisecond)
		}
	}
	return code, err
}

func newWorld(ctx context.Context) (*world, error) {
	v := &world{instance: "promises" + session.NewID(), log: &buffer{}}
	v.cli = sync.OnceValues(v.buildCLI)
	var err error
	if v.dir, err = os.MkdirTemp("", "promises-"); err != nil {
		return nil, err
	}
	if v.engine, err = docker.New(ctx, &docker.Options{Host: os.Getenv("DOCKER_HOST")}); err != nil {
		return nil, err
	}
	if v.api, err = dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation()); err != nil {
		return nil, err
	}
	logger := slog.New(slog.NewTextHandler(v.log, nil))
	v.manager, err = session.NewManager(v.engine, &session.Options{Instance: v.instance, AllowRoot: true, Logger: logger, IdleTimeout: time.Hour})
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
	for b, cfg := range map[**box]tools.Sandbox{
		&v.user: pythonBox(), &v.root: rootBox(), &v.bridgedUser: bridged(pythonBox()), &v.bridgedRoot: bridged(rootBox()),
	} {
		g.Go(func() error {
			var err error
			*b, err = openBox(ctx, v.manager, v.plugin, cfg)
			return err
		})
	}
	return g.Wait()
}

// end closes everything and looks for what is left of it.
func (v *world) end(ctx context.Context) error {
	err := errors.Join(v.manager.Close(ctx), v.engine.Close())
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		left, lerr := v.objects(ctx, v.instance)
		if lerr == nil && len(left) > 0 {
			lerr = fmt.Errorf("left on the engine:\n%s", strings.Join(left, "\n"))
		}
		if lerr == nil || time.Now().After(deadline) { // the last clean-up runs beside the call that asked for it
			err = errors.Join(err, lerr)
			break
		}
	}
	return errors.Join(err, v.api.Close(), os.RemoveAll(v.dir))
}

// objects lists the containers and volumes whose instance begins with prefix, and those that are named so.
func (v *world) objects(ctx context.Context, prefix string) ([]string, error) {
	var list []string
	cs, err := v.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, err
	}
	for _, c := range cs {
		if strings.HasPrefix(c.Labels[backend.LabelInstance], prefix) || strings.Contains(strings.Join(c.Names, " "), prefix) {
			list = append(list, fmt.Sprintf("container %v, %s", c.Names, c.State))
		}
	}
	vs, err := v.api.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", backend.LabelInstance))})
	if err != nil {
		return nil, err
	}
	for _, vol := range vs.Volumes {
		if strings.HasPrefix(vol.Labels[backend.LabelInstance], prefix) {
			list = append(list, "volume "+vol.Name)
		}
	}
	return list, nil
}

// stateDir makes a state directory for the command line, whose sandboxes then carry the given instance.
func (v *world) stateDir(t testing.TB, instance string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "instance"), []byte(instance+"\n"), 0o600))
	return dir
}
