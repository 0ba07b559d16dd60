// Package backendtest is the conformance suite for drivers. It tests the contract of [backend.SandboxBackend] on a real
// engine. The tests in e2e cover sessions, tools, and commands on top of a driver.
//
// A driver runs the suite from one test file:
//
//	func TestConformance(t *testing.T) {
//		backendtest.Run(t, backendtest.Harness{
//			Name:   "docker",
//			New:    func(t testing.TB) backend.SandboxBackend { … },
//			Debian: "workcell/debian:12", Python: "workcell/python:3.11",
//			Leftovers: …, Vanish: …, Describe: …, Foreign: …,
//		})
//	}
//
// The suite skips no tests. If an engine lacks a feature, Capabilities or a field of [Harness] must show this. The
// suite then expects backend.ErrUnsupported for requests for the feature. To run one part of the suite, use for example
//
//	go test -race -run 'TestConformance/isolation' ./backend/docker/
//
// The engine must run on the host of the tests, because the suite checks some properties from outside the sandbox. For
// example, it compares namespaces and kills processes without the driver. Tests run in parallel and share sandboxes if
// they only read them. At the end, no object of the suite may remain on the engine.
//
// # The test binary as another process
//
// Some tests need a dying process. They start the test binary again, with the name of the test that called Run. In the
// new process, Run performs the process's role instead of running the suite. Therefore the calling test must only call
// Run, and a TestMain function must call m.Run.
package backendtest

import (
	"context"
	"crypto/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// patience is the maximum time to wait for an event in a test. It is long because test hosts may be very busy.
const patience = 3 * time.Minute

// Harness describes a driver and the engine to the suite. Fields are required unless their comment states otherwise.
type Harness struct {
	// Name is the driver's name, for example "docker".
	Name string
	// New returns a new backend. All backends of the suite share one engine and one state, like several processes of the
	// same user. The suite closes the backend.
	New func(testing.TB) backend.SandboxBackend
	// NewAllowing returns a backend whose bridged sandboxes may also reach these addresses. Required for drivers with
	// support for NetworkBridge. The suite closes the backend.
	NewAllowing func(testing.TB, []netip.Prefix) backend.SandboxBackend
	// Debian is an image with a shell and the usual small programs. Python is an image with python3 in addition. Both must
	// exist on the engine to avoid pulls.
	Debian, Python string
	// Images contains the suite's functions to create images and registries. Required unless NoImages is set.
	Images *Images
	// NoImages is for drivers without images, whose references only stand for programs of the host. Such a driver cannot
	// pull images, report missing images, or read an image's environment. Info.Image is "host", and any unknown reference
	// returns ErrUnsupported.
	NoImages bool
	// Cluster is for drivers with sandboxes on the nodes of a Kubernetes cluster. Such a driver does not know the nodes or
	// their images. Sandboxes cannot mount host directories. Requests to keep an environment or a snapshot return
	// ErrUnsupported. A sandbox without a network still has a network interface. The user 0 is not available, because the
	// restricted Pod Security Standard forbids it. /tmp limits the number of bytes, but not the number of files.
	Cluster bool
	// Leftovers lists all objects of an installation on the engine, on disk, or running, for display. For example:
	// containers, volumes, snapshots, leases, FIFOs, cgroups, mounts, processes, and directories.
	Leftovers func(ctx context.Context, instance string) ([]string, error)
	// Vanish removes a sandbox without the driver, by the engine's own means or by hand. The sandbox may be running or
	// stopped. Its workspace may remain.
	Vanish func(ctx context.Context, id string) error
	// Describe returns all information of the engine about a sandbox. The suite searches it for secrets.
	Describe func(ctx context.Context, id string) (string, error)
	// Foreign creates a foreign object with the labels of a sandbox on the engine. It returns all names of the object on
	// the engine. The end of the test removes the object.
	Foreign func(t testing.TB, labels map[string]string) (names []string)
}

// suite is one run of the suite on one driver.
type suite struct {
	root     testing.TB // ends after all tests
	h        Harness
	b        backend.SandboxBackend
	caps     backend.Capabilities
	instance string // of all sandboxes without a separate instance

	python, debian sharedSandbox
}

// group is a part of the suite.
type group struct {
	name  string
	tests []check
}

// check is one test.
type check struct {
	name string
	run  func(*suite, *testing.T)
}

// Run runs the suite. See the package comment.
func Run(t *testing.T, h Harness) {
	t.Helper()
	run(t, h, groups(h))
}

// RunGroups runs the named groups of the suite. Use it for a driver with several implementations of the features in
// these groups, or if the driver only needs to pass these groups.
func RunGroups(t *testing.T, h Harness, names ...string) {
	t.Helper()
	all := groups(h)
	for _, name := range names {
		if !slices.ContainsFunc(all, func(g group) bool { return g.name == name }) {
			t.Fatalf("the suite has no group %q", name)
		}
	}
	run(t, h, slices.DeleteFunc(all, func(g group) bool { return !slices.Contains(names, g.name) }))
}

func run(t *testing.T, h Harness, all []group) {
	t.Helper()
	if beChild(t, h) {
		return
	}
	s := newSuite(t, h)
	for _, g := range all {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			g.run(s, t)
		})
	}
}

func (g group) run(s *suite, t *testing.T) {
	for _, c := range g.tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(s, t)
		})
	}
}

// groups returns the suite's groups for the driver.
func groups(h Harness) []group {
	all := []group{
		{"lifecycle", lifecycleChecks()},
		{"many", manyChecks()},
		{"dial", dialChecks()},
		{"limits", limitChecks()},
		{"workspace", workspaceChecks()},
		{"snapshots", snapshotChecks(h)},
		{"refused", refusalChecks()},
		{"loss", lossChecks()},
		{"crash", crashChecks()},
		{"environment", environmentChecks()},
		{"mounts", mountChecks()},
		{"network", networkChecks()},
		{"isolation", isolationChecks()},
	}
	if !h.NoImages {
		all = append(all, group{"pull", pullChecks()}, group{"hostile image", hostileChecks()})
	}
	return all
}

func newSuite(t *testing.T, h Harness) *suite {
	t.Helper()
	if h.Name == "" || h.New == nil || h.Debian == "" || h.Python == "" || h.Leftovers == nil || h.Vanish == nil ||
		h.Describe == nil || h.Foreign == nil || (h.Images == nil) != h.NoImages {
		t.Fatalf("the harness lacks a required field: %+v", h)
	}
	s := &suite{root: t, h: h, instance: freshInstance()}
	// Registered first because cleanup functions run in reverse order.
	t.Cleanup(func() { s.nothingLeft(t, s.instance) })
	s.b = s.backend(t)
	s.caps = s.b.Capabilities()
	return s
}

// freshInstance returns a new instance name.
func freshInstance() string { return "conformance-" + strings.ToLower(rand.Text()) }
