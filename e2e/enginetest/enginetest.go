// Package enginetest opens the engines of this machine for tests that run on each of them.
//
// WORKCELL_TEST_BACKEND chooses one engine: docker, containerd, local or kubernetes. Without it each has its turn but
// the last, which needs `make cluster`, and Tests. The build tag no_kubernetes leaves the cluster out: client-go is a
// third of what these tests compile. WORKCELL_TEST_OCI_RUNTIME is containerd's OCI runtime; Docker has what it is
// configured with.
package enginetest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/session"
)

var must = rig.Must

// Tests are those of a package.
type Tests struct{ M *testing.M }

// Run runs the tests, on Kubernetes in a namespace of their own, and returns the exit code.
func (t Tests) Run() int {
	if slices.Contains(Names(), "kubernetes") {
		return runOnCluster(t.M)
	}
	return t.M.Run()
}

// On runs a test on each engine, side by side.
func On(t *testing.T, test func(t *testing.T, engine string)) {
	t.Parallel()
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name)
		})
	}
}

// Names returns the engines that tests run on.
func Names() []string {
	if name := os.Getenv("WORKCELL_TEST_BACKEND"); name != "" {
		return []string{name}
	}
	return []string{"docker", "containerd", "local"}
}

// Open connects to an engine, with dir for what the driver keeps.
func Open(engine, dir string) (backend.SandboxBackend, error) {
	switch ctx := context.Background(); engine {
	case "docker":
		return docker.New(ctx, &docker.Options{Host: os.Getenv("DOCKER_HOST")})
	case "containerd":
		return containerd.New(ctx, &containerd.Options{StateDir: dir, Address: os.Getenv("CONTAINERD_ADDRESS"), OCIRuntime: os.Getenv("WORKCELL_TEST_OCI_RUNTIME")})
	case "local":
		return local.New(ctx, &local.Options{StateDir: dir})
	case "kubernetes":
		return openOnCluster(ctx)
	}
	return nil, fmt.Errorf("WORKCELL_TEST_BACKEND=%s: there is no such engine", engine)
}

// Driver connects to an engine for the time of a test.
func Driver(t testing.TB, engine string) backend.SandboxBackend {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700)) // #nosec G302 -- a directory
	b, err := Open(engine, dir)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

// Manager returns a manager of an instance of its own, of which nothing may be left when the test ends. o must name the
// instance.
func Manager(t testing.TB, b backend.SandboxBackend, o *session.Options) *session.Manager {
	t.Helper()
	m, err := session.NewManager(b, o)
	must(t, err)
	t.Cleanup(func() {
		must(t, m.Close(context.Background()))
		if left, err := b.List(context.Background(), backend.Filter{Instance: o.Instance}); err != nil || len(left) != 0 {
			t.Errorf("left: %+v, %v", left, err)
		}
	})
	return m
}
