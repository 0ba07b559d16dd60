//go:build linux

package containerd_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

const (
	pythonImage = "workcell/python:3.11"
	debianImage = "workcell/debian:12"
)

// instance marks everything that this run of the tests makes.
var instance = "test-" + strings.ToLower(rand.Text())

// stateEnv names the state directory to the processes that tests start.
const stateEnv = "WORKCELL_CONTAINERD_TEST_STATE"

// stateDir is where the tests keep their state. Every run has one of its own: what is in it and has no record on the
// engine is left behind, and so would be what another run made on another engine, or left when it was killed.
func stateDir() string { return os.Getenv(stateEnv) }

// cgroupParent is of its own for each run too.
func cgroupParent() string {
	return fmt.Sprintf("/workcell-test-%08x", crc32.ChecksumIEEE([]byte(stateDir())))
}

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if stateDir() != "" { // a process that a test started
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "workcell-containerd-")
	if err == nil {
		err = os.Setenv(stateEnv, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the machine's own temporary directory
	if code := m.Run(); code != 0 {
		return code
	}
	left, err := leftovers(context.Background(), instance)
	for deadline := time.Now().Add(3 * time.Minute); len(left) > 0 && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond) // others may be making or removing something of theirs
		left, err = leftovers(context.Background(), instance)
	}
	left = append(left, backendtest.LoopDevices(dir)...)
	if err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left behind:", left, err)
		return 1
	}
	if err := leaktest.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func newBackend(t testing.TB, adjust func(*containerd.Options)) *containerd.Backend {
	t.Helper()
	o := &containerd.Options{StateDir: stateDir(), CgroupParent: cgroupParent(), Address: os.Getenv("CONTAINERD_ADDRESS"), OCIRuntime: os.Getenv("WORKCELL_TEST_OCI_RUNTIME")}
	if adjust != nil {
		adjust(o)
	}
	b, err := containerd.New(t.Context(), o)
	return backendtest.Closing(t, b, err)
}

// engineAPI is a client of the engine beside the driver's.
func engineAPI(t testing.TB) *ctrd.Client {
	t.Helper()
	api, err := newAPI()
	must(t, err)
	t.Cleanup(func() { _ = api.Close() })
	return api
}

// engineAddress is the socket of the containerd that is tested.
func engineAddress() string {
	if address := os.Getenv("CONTAINERD_ADDRESS"); address != "" {
		return address
	}
	return containerd.DefaultAddress
}

func newAPI() (*ctrd.Client, error) {
	return ctrd.New(engineAddress(), ctrd.WithDefaultNamespace(containerd.DefaultNamespace))
}

func newSpec() backend.Spec { return backendtest.Spec(instance, debianImage) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// leftovers lists what an installation, or nobody, has on the engine and in the state directory.
func leftovers(ctx context.Context, instance string) ([]string, error) {
	api, err := newAPI()
	if err != nil {
		return nil, err
	}
	defer api.Close()            //nolint:errcheck // only asked
	found := map[string]string{} // each object, to the id of the sandbox that it is of
	for _, pattern := range []string{stateDir() + "/sandboxes/*", "/sys/fs/cgroup/*" + cgroupParent() + "/*", "/sys/fs/cgroup" + cgroupParent() + "/*-*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			if id := filepath.Base(p); containerd.IsContainer(id) {
				found[p] = id
			}
		}
	}
	running, err := api.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, err
	}
	for _, p := range running.GetTasks() {
		found["task "+p.GetID()] = p.GetID()
	}
	if err := api.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		if s.Kind == snapshots.KindActive && containerd.IsContainer(s.Name) {
			found["snapshot "+s.Name] = s.Name
		}
		return nil
	}); err != nil {
		return nil, err
	}
	// Last, because a container's record is the first thing that is made of a sandbox, and the last that goes.
	cs, err := api.ContainerService().List(ctx)
	if err != nil {
		return nil, err
	}
	owned := map[string]bool{}
	var left []string
	for _, c := range cs {
		owned[c.ID] = true
		if c.Labels[backend.LabelInstance] == instance {
			left = append(left, "container "+c.ID)
		}
	}
	for what, id := range found {
		if !owned[id] {
			left = append(left, what)
		}
	}
	return append(left, workspaces(instance)...), nil
}

// workspaces lists those of an installation.
func workspaces(instance string) []string {
	var left []string
	tags, _ := filepath.Glob(stateDir() + "/workspaces/*/owner.json") // the pattern is well-formed
	for _, p := range tags {
		if data, err := os.ReadFile(p); err == nil && strings.Contains(string(data), instance) {
			left = append(left, "workspace "+p)
		}
	}
	return left
}
