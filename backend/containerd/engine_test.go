//go:build linux

package containerd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend/containerd"
)

// vanish removes a sandbox only with containerd's own means, as an operator would.
func vanish(ctx context.Context, api *ctrd.Client, id string) error {
	c, err := api.LoadContainer(ctx, containerd.ContainerOf(id))
	if err != nil {
		return err
	}
	task, err := c.Task(ctx, nil)
	if err == nil {
		_, err = task.Delete(ctx, ctrd.WithProcessKill)
	}
	if err != nil && !cerrdefs.IsNotFound(err) {
		return err
	}
	return c.Delete(ctx, ctrd.WithSnapshotCleanup)
}

// foreign creates a container other than a Workcell sandbox. The end of the test removes it.
func foreign(t testing.TB, api *ctrd.Client, id string, labels map[string]string) {
	t.Helper()
	spec, err := typeurl.MarshalAny(&specs.Spec{Version: "1.0.2"})
	must(t, err)
	_, err = api.ContainerService().Create(t.Context(), containers.Container{
		ID: id, Labels: labels, Spec: spec, Runtime: containers.RuntimeInfo{Name: plugins.RuntimeRuncV2},
	})
	must(t, err)
	t.Cleanup(func() {
		err := api.ContainerService().Delete(context.Background(), id)
		if err != nil && !errors.Is(err, cerrdefs.ErrNotFound) {
			t.Errorf("remove a foreign container: %v", err)
		}
	})
}

// nothingLeft verifies that no object of a session's sandbox remains.
func nothingLeft(t *testing.T, session string) {
	t.Helper()
	api := engineAPI(t)
	id := containerd.SessionName(session)[:32] // prefix of all names
	if cs, err := api.ContainerService().List(context.Background(), "id~=^"+id); err != nil || len(cs) > 0 {
		t.Errorf("containers %v: %v", cs, err)
	}
	if err := api.SnapshotService("overlayfs").Walk(context.Background(), func(_ context.Context, s snapshots.Info) error {
		t.Errorf("snapshot %s", s.Name)
		return nil
	}, "name~=^"+id); err != nil {
		t.Error(err)
	}
	for _, pattern := range []string{
		stateDir() + "/*/" + id + "*", "/sys/fs/cgroup/*" + cgroupParent() + "/" + id + "*", "/sys/fs/cgroup" + cgroupParent() + "/" + id + "*",
		"/run/containerd/io.containerd.runtime.v2.task/workcell/" + id + "*", "/var/lib/cni/results/*" + id + "*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) > 0 {
			t.Errorf("left behind: %q, %v", found, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), id) {
		t.Errorf("mounts are left behind, %v", err)
	}
	for _, cmdline := range processes(t) {
		if strings.Contains(cmdline, id) {
			t.Errorf("a process is left behind: %s", cmdline)
		}
	}
}

// processes returns the command lines of all processes on this host.
func processes(t testing.TB) map[int]string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	out := map[int]string{}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		must(t, err)
		if data, err := os.ReadFile(dir + "/cmdline"); err == nil {
			out[pid] = strings.ReplaceAll(string(data), "\x00", " ")
		}
	}
	return out
}
