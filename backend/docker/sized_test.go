//go:build linux

package docker_test

import (
	"crypto/rand"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
)

// volumeDir is where the engine keeps the workspace of a sandbox.
func volumeDir(t *testing.T, spec backend.Spec) string {
	t.Helper()
	v, err := engineAPI(t).VolumeInspect(t.Context(), "workcell-"+spec.ID+"-workspace")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(v.Mountpoint)
}

// TestSized: a workspace's file system is mounted by Start alone, whatever was left of an earlier one, by one device, which
// goes with the sandbox; and it is removed with its volume.
func TestSized(t *testing.T) {
	t.Parallel()
	b, api := newBackend(t, nil), engineAPI(t)
	spec := confined()
	info := backendtest.Create(t, b, spec)
	dir := volumeDir(t, spec)
	link := filepath.Join(dir, "workspace.dev")
	backendtest.Sh(t, backendtest.Dial(t, b, info.ID), "echo kept > /workspace/f")
	if _, err := os.Lstat(link); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link to the device stays: %v", err)
	}
	for range 2 {
		if err := b.Stop(t.Context(), info.ID); err != nil {
			t.Fatal(err)
		}
		if left := backendtest.LoopDevices(dir); len(left) > 0 {
			t.Errorf("a stopped sandbox has %v", left)
		}
		if err := api.ContainerStart(t.Context(), info.ID, container.StartOptions{}); err == nil {
			t.Error("the engine started it without a device")
		}
		if err := os.Symlink("/dev/null", link); err != nil { // as a process that died leaves one
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			other := newBackend(t, nil)
			wg.Go(func() {
				if err := other.Start(t.Context(), info.ID); err != nil {
					t.Errorf("Start: %v", err)
				}
			})
		}
		wg.Wait()
		if got := backendtest.Sh(t, backendtest.Dial(t, b, info.ID), "cat /workspace/f; grep -c ' /workspace ext4 rw,nosuid,nodev' /proc/mounts"); got != "kept\n1\n" {
			t.Errorf("after a stop: %q", got)
		}
	}
	if err := b.Remove(t.Context(), info.ID, backend.RemoveOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	if left := backendtest.LoopDevices(dir); len(left) > 0 {
		t.Errorf("a removed sandbox has %v", left)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was the workspace is left: %v", err)
	}
}

// TestSizedLost: a file system that somebody deleted is told, and what holds a workspace that was kept is what held it.
func TestSizedLost(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := confined()
	info := backendtest.Create(t, b, spec)
	if err := b.Stop(t.Context(), info.ID); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(volumeDir(t, spec), "workspace.img")); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context(), info.ID); !errors.Is(err, backend.ErrLost) {
		t.Errorf("Start: %v, want ErrLost", err)
	}

	spec = confined()
	spec.Limits = backend.Limits{}
	info = backendtest.Create(t, b, spec)
	backendtest.Sh(t, backendtest.Dial(t, b, info.ID), "echo kept > /workspace/f")
	if err := b.Remove(t.Context(), info.ID, backend.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	spec.Limits.WorkspaceBytes = 8 << 20
	info = backendtest.Create(t, b, spec)
	if got := backendtest.Sh(t, backendtest.Dial(t, b, info.ID), "cat /workspace/f"); got != "kept\n" || info.Workspace != backend.WorkspaceWatched {
		t.Errorf("a workspace that had no limit: %q, %q", got, info.Workspace)
	}
}

// TestSizedKept: reopening a kept workspace makes no other one to find out what could be had, for which a
// full disk has no room.
func TestSizedKept(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := confined()
	info := backendtest.Create(t, b, spec)
	backendtest.Sh(t, backendtest.Dial(t, b, info.ID), "echo kept > /workspace/f")
	p := newProxy(t)
	p.on(func(r *http.Request) bool { return !strings.HasSuffix(r.URL.Path, "/volumes/create") })
	if err := b.Remove(t.Context(), info.ID, backend.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	next := newBackend(t, func(o *docker.Options) { o.Host = p.host })
	info = backendtest.Create(t, next, spec)
	if got := backendtest.Sh(t, backendtest.Dial(t, next, info.ID), "cat /workspace/f"); got != "kept\n" || info.Workspace != backend.WorkspaceSized {
		t.Errorf("the kept workspace holds %q and is held by %q", got, info.Workspace)
	}
}

// confined is a sandbox whose workspace has a limit.
func confined() backend.Spec {
	spec := newSpec()
	spec.Limits.WorkspaceBytes = 8 << 20
	return spec
}

// TestSizedElsewhere: an engine whose files are not here has its workspaces enforced in another way. Finding out leaves nothing,
// also of processes that died over it.
func TestSizedElsewhere(t *testing.T) {
	t.Parallel()
	api := engineAPI(t)
	old, young := "workcell-probe-"+strings.ToLower(rand.Text()), "workcell-probe-"+strings.ToLower(rand.Text())
	for name, age := range map[string]time.Duration{old: time.Hour, young: 0} {
		made := map[string]string{"dev.workcell.probe": time.Now().Add(-age).UTC().Format(time.RFC3339)}
		if _, err := api.VolumeCreate(t.Context(), volume.CreateOptions{Name: name, Labels: made}); err != nil {
			t.Fatal(err)
		}
	}
	b := newBackend(t, nil)
	b.SetRoot(t.TempDir())
	if got, want := b.Capabilities().Workspace, backend.WorkspaceWatched; got != want {
		t.Errorf("enforced as %q, want %q", got, want)
	}
	if got := newBackend(t, nil).Capabilities().Workspace; got != backend.WorkspaceSized {
		t.Errorf("enforced as %q", got)
	}
	if _, err := api.VolumeInspect(t.Context(), old); err == nil {
		t.Error("what a dead process left is there")
	}
	if err := api.VolumeRemove(t.Context(), young, false); err != nil {
		t.Errorf("what another process has is gone: %v", err)
	}
}

// TestWatched has the guest hold a workspace to its limit, as where no file system of its own can be had; with the engine
// where that gives volumes a size.
func TestWatched(t *testing.T) {
	t.Parallel()
	h := harness(t)
	h.New = func(t testing.TB) backend.SandboxBackend {
		b := newBackend(t, nil)
		b.SetRoot(t.TempDir())
		return b
	}
	backendtest.RunGroups(t, h, "workspace")
}
