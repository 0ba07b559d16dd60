//go:build linux

package containerd_test

import (
	"cmp"
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
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

const (
	pythonImage = "workcell/python:3.11"
	debianImage = "workcell/debian:12"
)

// instance labels all objects of this test run.
var instance = "test-" + strings.ToLower(rand.Text())

// stateEnv is the environment variable with the state directory for child processes of tests.
const stateEnv = "WORKCELL_CONTAINERD_TEST_STATE"

// stateDir returns the state directory of the tests. Every test run has a separate directory. Otherwise, objects of a
// killed run or of another engine in the directory would look like leftovers, because they have no record on this
// engine.
func stateDir() string { return os.Getenv(stateEnv) }

// cgroupParent returns the control group of this test run.
func cgroupParent() string {
	return fmt.Sprintf("/workcell-test-%08x", crc32.ChecksumIEEE([]byte(stateDir())))
}

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if stateDir() != "" { // a child process of a test
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
	defer os.RemoveAll(dir) //nolint:errcheck // the host's temporary directory
	if code := m.Run(); code != 0 {
		return code
	}
	left, err := leftovers(context.Background(), instance)
	for deadline := time.Now().Add(3 * time.Minute); len(left) > 0 && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond) // other processes may be creating or removing objects
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

// engineAPI returns a client of the engine, independent of the driver.
func engineAPI(t testing.TB) *ctrd.Client {
	t.Helper()
	api, err := newAPI()
	must(t, err)
	t.Cleanup(func() { _ = api.Close() })
	return api
}

// engineAddress returns the socket of the containerd under test.
func engineAddress() string {
	return cmp.Or(os.Getenv("CONTAINERD_ADDRESS"), containerd.DefaultAddress)
}

func newAPI() (*ctrd.Client, error) {
	return ctrd.New(engineAddress(), ctrd.WithDefaultNamespace(containerd.DefaultNamespace))
}

func newSpec() backend.Spec { return backendtest.Spec(instance, debianImage) }

var must = checktest.Must

// second returns the error of a call with two results.
func second[T any](_ T, err error) error { return err }

// leftovers lists the objects of an installation, and objects without an owner, on the engine and in the state
// directory.
func leftovers(ctx context.Context, instance string) ([]string, error) {
	api, err := newAPI()
	if err != nil {
		return nil, err
	}
	defer api.Close()            //nolint:errcheck // only used for queries
	found := map[string]string{} // each object, with the sandbox's ID
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
	// The records are read last, because the record of a sandbox is created first and removed last.
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

// workspaces lists the workspaces of an installation.
func workspaces(instance string) []string {
	var left []string
	tags, _ := filepath.Glob(stateDir() + "/workspaces/*/owner.json") // the pattern is valid
	for _, p := range tags {
		if data, err := os.ReadFile(p); err == nil && strings.Contains(string(data), instance) {
			left = append(left, "workspace "+p)
		}
	}
	return left
}
