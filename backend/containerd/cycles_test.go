package containerd_test

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.uber.org/goleak"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
)

// cyclesEnv names the containerd namespace of a process that TestCycles started.
const cyclesEnv = "WORKCELL_CONTAINERD_TEST_CYCLES"

// TestCycles makes and removes many sandboxes, in a process and a namespace of their own so that all can be counted:
// nothing is left of them, in the engine, on the machine or in the process.
func TestCycles(t *testing.T) {
	t.Parallel()
	if ns := os.Getenv(cyclesEnv); ns != "" {
		countCycles(t, ns)
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ns, dir := "workcell-cycles-"+strings.ToLower(rand.Text()), t.TempDir()
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestCycles$", "-test.count=1")
	cmd.Env = append(os.Environ(), cyclesEnv+"="+ns, stateEnv+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// countCycles compares what there is before and after.
func countCycles(t *testing.T, ns string) {
	o := func(o *containerd.Options) { o.Namespace = ns }
	api, err := ctrd.New(engineAddress(), ctrd.WithDefaultNamespace(ns))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeNamespace(t, api, ns) })
	ref, data := archived(t, backendtest.BuildImage(t, v1.Config{}, backendtest.Unique()))
	if _, err := newBackend(t, o).ImportImage(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	cycles(t, o, ref, 4) // what is made once
	before := inventory(t, api, ns)
	rest := goleak.IgnoreCurrent()
	cycles(t, o, ref, 200)
	left, leak := added(before, inventory(t, api, ns)), goleak.Find(rest)
	for deadline := time.Now().Add(3 * time.Minute); (len(left) > 0 || leak != nil) && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond) // a shim ends beside the answer to its last call
		left, leak = added(before, inventory(t, api, ns)), goleak.Find(rest)
	}
	if len(left) > 0 || leak != nil {
		t.Errorf("left behind: %v, %v", left, leak)
	}
}

// added gives what was not there before. What was, and is not, had been about to go.
func added(before, after map[string][]string) map[string][]string {
	more := map[string][]string{}
	for what, list := range after {
		if what == "descriptors" { // they have numbers, no names
			if len(list) > len(before[what]) {
				more[what] = list
			}
			continue
		}
		if list = slices.DeleteFunc(list, func(s string) bool { return slices.Contains(before[what], s) }); len(list) > 0 {
			more[what] = list
		}
	}
	return more
}

// cycles makes and removes n sandboxes, some at a time: some with a network, some with a layer of their own, some that
// cannot be made.
func cycles(t *testing.T, o func(*containerd.Options), ref string, n int64) {
	t.Helper()
	b := newBackend(t, o)
	var left atomic.Int64
	left.Store(n)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := left.Add(-1); i >= 0 && !t.Failed(); i = left.Add(-1) {
				spec := newSpec()
				spec.Image = ref
				switch i % 10 {
				case 0:
					spec.Network = backend.NetworkBridge
				case 1:
					spec.Root = backend.RootWritable
				case 2:
					short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
					if info, err := b.Create(short, spec); err == nil {
						remove(t, b, info.ID)
					}
					cancel()
				}
				info, err := b.Create(t.Context(), spec)
				if err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				remove(t, b, info.ID)
			}
		})
	}
	wg.Wait()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// inventory lists what there is of a namespace of containerd's, of the state directory and of this process.
func inventory(t *testing.T, api *ctrd.Client, ns string) map[string][]string {
	t.Helper()
	out := engineInventory(t, api)
	for what, pattern := range map[string]string{
		"files":          stateDir() + "/*/*",
		"bundles":        "/run/containerd/io.containerd.runtime.v2.task/" + ns + "/*",
		"control groups": "/sys/fs/cgroup/*" + cgroupParent() + "/*",
		"of version 2":   "/sys/fs/cgroup" + cgroupParent() + "/*.*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		out[what] = found
	}
	for _, cmdline := range processes(t) {
		if strings.Contains(cmdline, "containerd-shim") && strings.Contains(cmdline, ns) {
			out["shims"] = append(out["shims"], cmdline)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, ns) || strings.Contains(line, stateDir()) {
			out["mounts"] = append(out["mounts"], line)
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		out["descriptors"] = append(out["descriptors"], fd.Name())
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out
}

// engineInventory lists what containerd has in the client's namespace.
func engineInventory(t *testing.T, api *ctrd.Client) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	add := func(what, name string) { out[what] = append(out[what], name) }
	ctx := t.Context()
	cs, err := api.ContainerService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cs {
		add("containers", c.ID)
	}
	running, err := api.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range running.GetTasks() {
		add("tasks", p.GetID())
	}
	leases, err := api.LeasesService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		add("leases", l.ID)
	}
	if err := api.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		add("snapshots", s.Name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := api.ContentStore().Walk(ctx, func(i content.Info) error {
		add("content", i.Digest.String())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// removeNamespace deletes a namespace of containerd's and the images in it.
func removeNamespace(t *testing.T, api *ctrd.Client, ns string) {
	ctx := context.Background()
	list, err := api.ImageService().List(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, i := range list {
		if err := api.ImageService().Delete(ctx, i.Name, images.SynchronousDelete()); err != nil {
			t.Error(err)
		}
	}
	if err := api.NamespaceService().Delete(ctx, ns); err != nil {
		t.Error(err)
	}
	if err := api.Close(); err != nil {
		t.Error(err)
	}
}
