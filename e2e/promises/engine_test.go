//go:build linux

package promises

import (
	"context"
	"fmt"
	"log/slog"
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

// backendVariable is the environment variable for the attacked driver: docker, containerd, local, or kubernetes.
const backendVariable = "WORKCELL_TEST_BACKEND"

// engine examines an engine independently of the driver: how to look at it from outside, and what to expect there.
type engine interface {
	// connect opens a driver, like another process of the same user would.
	connect(ctx context.Context, opts connection) (backend.SandboxBackend, error)
	// environ returns the variables with which the command line finds the same engine.
	environ() []string
	// left lists everything with prefix at the start of the instance or anywhere in the name.
	left(ctx context.Context, prefix string) ([]string, error)
	// pid returns the PID on the host of a sandbox's main process.
	pid(ctx context.Context, id string) (int, error)
	// describe returns the engine's description of a sandbox.
	describe(ctx context.Context, id string) (string, error)
	// stranger starts a container or process that does not belong to Workcell, until the test ends. It has the labels of a
	// sandbox or none.
	stranger(t testing.TB, image string, labels map[string]string) stranger
	// mounts matches the allowed mount points in a sandbox.
	mounts() *regexp.Regexp
	// inspect checks every field of a sandbox's description.
	inspect(t *testing.T, b *testSandbox)
	close() error
}

// imaged is implemented by engines that run sandboxes from images.
type imaged interface {
	// derive builds an image from the plain image, for the duration of the test, and returns the reference.
	derive(t testing.TB, c change) string
	// tag creates another reference to an image, or moves one.
	tag(ctx context.Context, image, ref string) error
	// forget removes a reference, and the image with the last reference.
	forget(ctx context.Context, ref string) error
}

// served is implemented by engines in separate programs behind a socket.
type served interface {
	// proxy starts a proxy in front of the engine.
	proxy(t testing.TB) *proxy
	// creates reports whether a request creates a sandbox.
	creates(r *http.Request) bool
	// streams reports whether a session's commands use the engine's socket, and so end with it.
	streams() bool
}

// clustered is implemented by engines with several hosts. The driver knows none of the hosts. No sandbox runs as root,
// because the cluster's administrator forbids it.
type clustered interface {
	// cannot returns the tests of guarantees not applicable to the cluster.
	cannot() []string
}

// connection configures how a driver is opened. Zero fields use the driver's defaults.
type connection struct {
	address     string // address of a proxy
	allowNets   []netip.Prefix
	patience    time.Duration
	pullTimeout time.Duration
	logger      *slog.Logger
	tracer      trace.TracerProvider
}

// change describes the differences of a derived image.
type change struct {
	env, labels map[string]string
	file        *file
}

// file is a file of root.
type file struct {
	path string // without a leading slash
	mode int64
	data []byte
}

// stranger is a container or process on the engine that does not belong to Workcell.
type stranger struct {
	names []string // names accepted by the engine
	runs  func() bool
}

// onCluster reports whether the engine has several hosts.
func onCluster() bool {
	_, ok := w.engine.(clustered)
	return ok
}

// openEngine opens the engine selected in the environment.
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
		e, err = openKubernetes()
	default:
		err = fmt.Errorf("%s=%s: there is no such engine", backendVariable, name)
	}
	return name, e, err
}

// running reports whether the main process of a sandbox or a stranger is running.
func running(id string) bool {
	pid, err := w.engine.pid(context.Background(), id)
	if err != nil || pid <= 0 {
		return false
	}
	s, err := status(pid)
	return err == nil && !strings.HasPrefix(s["State"], "Z")
}

// processes returns the PIDs on the host of a sandbox's processes.
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

// containerMounts matches the allowed mount points in a container.
func containerMounts() *regexp.Regexp {
	return regexp.MustCompile(`^(/|/proc(/.*)?|/sys(/.*)?|/dev(/(pts|mqueue|shm))?|/tmp|/workspace|/\.workcell|/etc/(resolv\.conf|hostname|hosts|passwd|group))$`)
}

// newReference returns a reference unknown to every engine.
func newReference() string { return "workcell-promises/" + strings.ToLower(record.NewID()) + ":1" }

// strangerName returns a name for the tests' objects other than sandboxes. If such an object stays, it counts as left.
func strangerName() string { return "other-" + w.instance + "-" + record.NewID() }
