// Package enginetest opens the host's engines for tests on each of them.
//
// WORKCELL_TEST_BACKEND selects one engine: docker, containerd, local, or kubernetes. By default, all of them except
// kubernetes are tested, because kubernetes requires `make cluster` and Tests. The build tag no_kubernetes excludes the
// cluster, because client-go takes a third of the compile time of these tests. WORKCELL_TEST_OCI_RUNTIME is
// containerd's OCI runtime. Docker uses the configured runtime.
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
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

var must = checktest.Must

// Tests are the tests of a package.
type Tests struct{ M *testing.M }

// Run runs the tests and returns the exit code. On Kubernetes, they run in a new namespace.
func (t Tests) Run() int {
	if slices.Contains(Names(), "kubernetes") {
		return runOnCluster(t.M)
	}
	return t.M.Run()
}

// On runs a test on each engine in parallel.
func On(t *testing.T, test func(t *testing.T, engine string)) {
	t.Parallel()
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name)
		})
	}
}

// Names returns the engines to test.
func Names() []string {
	if name := os.Getenv("WORKCELL_TEST_BACKEND"); name != "" {
		return []string{name}
	}
	return []string{"docker", "containerd", "local"}
}

// Open connects to an engine. dir is the driver's state directory.
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

// Driver connects to an engine until the end of a test.
func Driver(t testing.TB, engine string) backend.SandboxBackend {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700)) // #nosec G302 -- a directory
	b, err := Open(engine, dir)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

// Put copies a program of the host into a sandbox.
func Put(t testing.TB, s *session.Session, program, name string) {
	t.Helper()
	f, err := os.Open(program)
	must(t, err)
	defer f.Close()
	info, err := f.Stat()
	must(t, err)
	_, err = s.WriteFile(t.Context(), name, f, sandbox.WriteFileOptions{Size: info.Size(), Mode: 0o755})
	must(t, err)
}

// Manager returns a manager for a new instance, which o must set. At the end of the test, it checks for leftover
// sandboxes.
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
