//go:build linux

package promises

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/record"
)

// backendVariable names the driver that the tests attack: docker, containerd, local or kubernetes.
const backendVariable = "WORKCELL_TEST_BACKEND"

// engine is what the tests know of an engine apart from its driver: how to look at it from outside, and what to find
// there.
type engine interface {
	// connect opens a driver, as another process of the same user would.
	connect(ctx context.Context, opts connection) (backend.SandboxBackend, error)
	// environ returns the variables that lead the command line to the same engine.
	environ() []string
	// left lists everything with an instance that begins with prefix, or a name that contains it.
	left(ctx context.Context, prefix string) ([]string, error)
	// pid returns the main process of a sandbox, on this machine.
	pid(ctx context.Context, id string) (int, error)
	// describe returns the engine's description of a sandbox.
	describe(ctx context.Context, id string) (string, error)
	// stranger starts something that is not Workcell's, until the test ends, with the labels of a sandbox or none.
	stranger(t testing.TB, image string, labels map[string]string) stranger
	// unreachable returns environments in which the command line finds no engine, by what is wrong.
	unreachable(t testing.TB) map[string]string
	// mounts matches the places where something is mounted in a sandbox.
	mounts() *regexp.Regexp
	// inspect checks every field of a sandbox's description.
	inspect(t *testing.T, b *testSandbox)
	close() error
}

// imaged is implemented by engines that run sandboxes from images.
type imaged interface {
	// derive makes an image from the plain one, for as long as the test runs, and returns its reference.
	derive(t testing.TB, c change) string
	// tag makes another reference to an image, or moves one.
	tag(ctx context.Context, image, ref string) error
	// forget removes a reference, and the image with its last one.
	forget(ctx context.Context, ref string) error
}

// served is implemented by engines that are programs of their own, behind a socket.
type served interface {
	// proxy starts a proxy before the engine.
	proxy(t testing.TB) *proxy
	// creates reports whether a request creates a sandbox.
	creates(r *http.Request) bool
	// streams reports whether a session's commands go through the engine's socket, and so end with it.
	streams() bool
}

// clustered is implemented by engines of many machines. The driver knows none of them, and nobody's sandbox is root:
// whoever rules the cluster has said so.
type clustered interface {
	// cannot returns the tests of what is promised elsewhere and cannot hold there.
	cannot() []string
}

// connection is how a driver is opened. Zero fields are the driver's defaults.
type connection struct {
	address     string // of a proxy
	allowNets   []netip.Prefix
	patience    time.Duration
	pullTimeout time.Duration
	logger      *slog.Logger
	tracer      trace.TracerProvider
}

// change is how a derived image differs.
type change struct {
	env, labels map[string]string
	file        *file
}

// file is one that belongs to root.
type file struct {
	path string // without a leading slash
	mode int64
	data []byte
}

// stranger is something on the engine that is not Workcell's.
type stranger struct {
	names []string // by which the engine knows it
	runs  func() bool
}

// onCluster reports whether the engine is one of many machines.
func onCluster() bool {
	_, ok := w.engine.(clustered)
	return ok
}

// openEngine finds the engine that the environment names.
func openEngine(dir string) (name string, e engine, err error) {
	switch name = os.Getenv(backendVariable); name {
	case "", "docker":
		name = "docker"
		e, err = openDocker()
	case "containerd":
		e, err = openContainerd()
	case "local":
		e = openLocal(dir)
	case "kubernetes":
		e, err = openKubernetes(dir)
	default:
		err = fmt.Errorf("%s=%s: there is no such engine", backendVariable, name)
	}
	return name, e, err
}

// running reports whether the main process of a sandbox, or of a stranger, runs.
func running(id string) bool {
	pid, err := w.engine.pid(context.Background(), id)
	if err != nil || pid <= 0 {
		return false
	}
	s, err := status(pid)
	return err == nil && !strings.HasPrefix(s["State"], "Z")
}

// processes returns the processes of a sandbox, as the machine sees them.
func processes(ctx context.Context, id string) ([]int, error) {
	main, err := w.engine.pid(ctx, id)
	if err != nil {
		return nil, err
	}
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", main))
	if err != nil {
		return nil, err
	}
	links, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	var list []int
	for _, link := range links {
		if other, err := os.Readlink(link); err == nil && other == ns {
			pid, err := strconv.Atoi(strings.Split(link, "/")[2])
			if err != nil {
				return nil, err
			}
			list = append(list, pid)
		}
	}
	return list, err
}

// status returns the fields of a process's status.
func status(pid int) (map[string]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields, err
}

// containerMounts matches the places where something is mounted in a container.
func containerMounts() *regexp.Regexp {
	return regexp.MustCompile(`^(/|/proc(/.*)?|/sys(/.*)?|/dev(/(pts|mqueue|shm))?|/tmp|/workspace|/\.workcell|/etc/(resolv\.conf|hostname|hosts|passwd|group))$`)
}

// newReference returns a reference that no engine knows.
func newReference() string { return "workcell-promises/" + strings.ToLower(record.NewID()) + ":1" }

// strangerName returns a name by which what a test makes besides sandboxes counts as left if it stays.
func strangerName() string { return "other-" + w.instance + "-" + record.NewID() }

// silentSocket takes connections and answers nothing.
func silentSocket(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "silent.sock")
	l, err := net.Listen("unix", path) // nobody accepts
	must(t, err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return path
}
