package promises

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
)

// backendVariable names the driver that the tests attack: docker, containerd or local.
const backendVariable = "WORKCELL_TEST_BACKEND"

// engine is what the tests know of an engine beside its driver: how to look at it from outside, and what to find there.
type engine interface {
	// connect opens a driver, as another process of the same user would.
	connect(ctx context.Context, opts connection) (backend.SandboxBackend, error)
	// environ is what tells the command line of the same engine.
	environ() []string
	// left lists everything with an instance that begins with prefix, or a name that holds it.
	left(ctx context.Context, prefix string) ([]string, error)
	// running tells whether a sandbox's main process runs.
	running(ctx context.Context, id string) bool
	// processes counts the processes of a sandbox as the machine sees them.
	processes(ctx context.Context, id string) (int, error)
	// describe gives all that the engine tells of a sandbox to whoever may ask it.
	describe(ctx context.Context, id string) (string, error)
	// stranger starts something that is not Workcell's, until the test ends. labels are those of a sandbox, or nil.
	stranger(t testing.TB, labels map[string]string) stranger
	// unreachable gives environments in which the command line finds no engine, by what is wrong.
	unreachable(t testing.TB) map[string]string

	// mounts matches the places where something is mounted in a sandbox.
	mounts() *regexp.Regexp
	// What is promised of the description of a sandbox.
	inspect(t *testing.T, b *box)
	inspectMounts(t *testing.T, b *box)
	benchmark(t *testing.T, b *box)

	close() error
}

// networked is implemented by engines that can connect sandboxes to a network.
type networked interface {
	// address gives the address of a bridged sandbox and of its network's gateway.
	address(ctx context.Context, id string) (own, gateway string, err error)
}

// imaged is implemented by engines that run sandboxes from images.
type imaged interface {
	// derive makes an image from the plain one, for as long as the test runs, and gives its reference.
	derive(t testing.TB, c change) string
	// imageID gives what the engine itself calls an image, 64 hexadecimal digits.
	imageID(ctx context.Context, ref string) (string, error)
	// tag makes another reference to an image, or moves one.
	tag(ctx context.Context, image, ref string) error
	// forget removes a reference, and the image with its last one.
	forget(ctx context.Context, ref string) error
	// strangerFrom is stranger, from an image.
	strangerFrom(t testing.TB, image string, labels map[string]string) stranger
}

// served is implemented by engines that are programs of their own, behind a socket.
type served interface {
	// front puts a proxy before the engine.
	front(t testing.TB) *proxy
	// steps are the requests by which a sandbox comes about.
	steps() map[string]func(*http.Request) bool
	// streams tells whether a session's commands go through the engine's socket, and so end with it.
	streams() bool
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
	files       []file
}

// file is one that belongs to root.
type file struct {
	path string // without a slash in front
	mode int64
	data []byte
}

// stranger is something on the engine that is not Workcell's.
type stranger struct {
	names []string // by which the engine knows it
	runs  func() bool
}

// engines are those that can be attacked.
func engines() map[string]func(ctx context.Context, dir string) (engine, error) {
	return map[string]func(context.Context, string) (engine, error){
		"docker": openDocker, "containerd": openContainerd, "local": openLocal,
	}
}

// openEngine finds the engine that the environment names.
func openEngine(ctx context.Context, dir string) (string, engine, error) {
	name := os.Getenv(backendVariable)
	if name == "" {
		name = "docker"
	}
	open, ok := engines()[name]
	if !ok {
		return "", nil, fmt.Errorf("%s=%s: there is no such engine", backendVariable, name)
	}
	e, err := open(ctx, dir)
	return name, e, err
}

// procs gives the processes that share a namespace with one: all of its sandbox.
func procs(pid int) ([]int, error) {
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var list []int
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", n)); err == nil && other == ns {
			list = append(list, n)
		}
	}
	return list, nil
}

// status gives the fields of a process's status.
func status(pid int) (map[string]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields, nil
}

// networkOf reads the IPv4 address of a process's network, other than the loopback's, and its gateway.
func networkOf(pid int) (own, gateway string, err error) {
	routes, err := os.Open(fmt.Sprintf("/proc/%d/net/route", pid))
	if err != nil {
		return "", "", err
	}
	defer routes.Close()
	for lines := bufio.NewScanner(routes); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) > 2 && f[1] == "00000000" {
			raw, err := hex.DecodeString(f[2])
			if err != nil || len(raw) != 4 {
				return "", "", fmt.Errorf("route %q: %w", lines.Text(), err)
			}
			slices.Reverse(raw) // the kernel prints the number in the machine's order
			gateway = netip.AddrFrom4([4]byte(raw)).String()
		}
	}
	trie, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/fib_trie", pid))
	if err != nil {
		return "", "", err
	}
	last := ""
	for line := range strings.Lines(string(trie)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 2 && f[0] == "|--":
			last = f[1]
		case len(f) == 3 && f[0] == "/32" && f[2] == "LOCAL" && !strings.HasPrefix(last, "127."):
			own = last
		}
	}
	if own == "" || gateway == "" {
		return "", "", errors.New("no address or gateway found")
	}
	return own, gateway, nil
}

// smallFiles gives the contents of what lies below a directory.
func smallFiles(dir string) (string, error) {
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(&all, "%s: %s\n", path, text)
		return err
	})
	return all.String(), err
}

// containerMounts are the places where something is mounted in a container.
func containerMounts() *regexp.Regexp {
	return regexp.MustCompile(`^(/|/proc(/.*)?|/sys(/.*)?|/dev(/(pts|mqueue|shm))?|/tmp|/workspace|/\.workcell|/etc/(resolv\.conf|hostname|hosts))$`)
}

// newOnly leaves out what was there before.
func newOnly(list, before []string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return slices.Contains(before, s) })
}
