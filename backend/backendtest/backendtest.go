// Package backendtest is the conformance suite of drivers: the contract of [backend.SandboxBackend], tried on a real
// engine. What sessions, tools and commands make of a driver is tested in e2e.
//
// A driver runs it from one test file:
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
// Nothing in it is skipped. What an engine cannot do is said by its Capabilities or by a field of [Harness], and then
// the suite asserts that asking for it is refused with backend.ErrUnsupported. One part runs with
//
//	go test -race -run 'TestConformance/isolation' ./backend/docker/
//
// The engine must run on the machine of the tests, for some of what the suite does is seen from outside the sandbox
// only: it compares namespaces, and ends processes behind the driver's back. Tests run in parallel and share sandboxes
// where they only look. At the end nothing of the suite may be left on the engine.
//
// # The test binary as another process
//
// Some tests need a process that dies. They start the test binary again, with the name of the test that called Run, and
// Run then does that process's part instead of the suite. So Run must be the only thing that the calling test does, and
// a TestMain must let m.Run run.
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

// patience is how long a test waits for what must happen at some time. Machines that run tests may be very busy.
const patience = 3 * time.Minute

// Harness describes a driver and its engine to the suite. Fields are required unless their comment says otherwise.
type Harness struct {
	// Name is the driver's: "docker".
	Name string
	// New makes a backend of its own on the one engine and state that all of the suite's backends share, as another
	// process of the same user would. The suite closes it.
	New func(testing.TB) backend.SandboxBackend
	// NewAllowing makes a backend whose bridged sandboxes may reach these addresses too. Required of drivers that can
	// bridge; the suite closes it.
	NewAllowing func(testing.TB, []netip.Prefix) backend.SandboxBackend
	// Debian names an image with a shell and the usual small programs, Python one with python3 too. They must be there
	// without being pulled.
	Debian, Python string
	// Images is what the suite needs to make images and registries of its own. Required unless NoImages.
	Images *Images
	// NoImages is for drivers whose references only stand for programs of the host: there is nothing to pull, to miss or
	// to declare an environment, Info.Image is "host", and any reference but the known ones is ErrUnsupported.
	NoImages bool
	// Cluster is for drivers whose sandboxes are on machines of a cluster that Kubernetes rules: the driver knows neither
	// these machines nor their images, a sandbox sees no directory of them, asking to keep an environment or a snapshot is
	// ErrUnsupported, and a network that leads nowhere is an interface all the same. Users other than 0 are all there are,
	// for the restricted Pod Security Standard refuses it; files, not bytes, of /tmp have no limit.
	Cluster bool
	// Leftovers lists, for people, everything of an installation that is on the engine, on disk or running: containers,
	// volumes, snapshots, leases, FIFOs, cgroups, mounts, processes, directories.
	Leftovers func(ctx context.Context, instance string) ([]string, error)
	// Vanish removes a sandbox behind the driver's back, by the engine's own means or by hand, running or not. Its
	// workspace may stay.
	Vanish func(ctx context.Context, id string) error
	// Describe returns all that the engine knows of a sandbox: secrets must not be in it.
	Describe func(ctx context.Context, id string) (string, error)
	// Foreign makes something on the engine that is no sandbox of Workcell's but carries labels of one, and returns every
	// name under which the engine knows it. The test's end removes it.
	Foreign func(t testing.TB, labels map[string]string) (names []string)
}

// suite is one run on one driver.
type suite struct {
	root     testing.TB // ends after all tests
	h        Harness
	b        backend.SandboxBackend
	caps     backend.Capabilities
	instance string // of all that has none of its own

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

// Run runs the suite. See the package's comment.
func Run(t *testing.T, h Harness) {
	t.Helper()
	run(t, h, groups(h))
}

// RunGroups runs the groups of the suite that are named, for a driver that does in several ways what these are about,
// or that owes no others.
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

// groups returns the whole suite, as far as it is for such a driver.
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
	// In this order, because what is registered last runs first.
	t.Cleanup(func() { s.nothingLeft(t, s.instance) })
	s.b = s.backend(t)
	s.caps = s.b.Capabilities()
	return s
}

// freshInstance names an installation that nothing belongs to yet.
func freshInstance() string { return "conformance-" + strings.ToLower(rand.Text()) }
