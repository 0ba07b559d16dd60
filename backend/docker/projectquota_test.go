package docker_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
)

// confined is a sandbox whose workspace has a limit.
func confined() backend.Spec {
	spec := newSpec()
	spec.Limits.WorkspaceBytes = 8 << 20
	return spec
}

// unsized is what holds a workspace where it cannot be a file system of its own: a quota if the engine has such, which it
// tells by taking a volume with a size.
func unsized(t *testing.T) backend.WorkspaceMeans {
	t.Helper()
	v, err := engineAPI(t).VolumeCreate(t.Context(), volume.CreateOptions{Driver: "local", DriverOpts: map[string]string{"size": "1048576"}})
	if err != nil {
		return backend.WorkspaceWatched
	}
	if err := engineAPI(t).VolumeRemove(t.Context(), v.Name, false); err != nil {
		t.Error(err)
	}
	return backend.WorkspaceProject
}

// TestProjectQuota: the engine is asked once whether it gives volumes a size, and again when it did not answer.
func TestProjectQuota(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	var asked atomic.Int32
	reached := make(chan struct{})
	p.on(func(r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/volumes/create") {
			return true
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return false
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte(`"size":"1048576"`)) && asked.Add(1) == 1 {
			close(reached)
			return false
		}
		return true
	})
	b := newBackend(t, func(o *docker.Options) { o.Host = p.host })
	b.SetRoot(t.TempDir())
	done := make(chan error, 1)
	go func() {
		_, err := b.Create(t.Context(), confined())
		done <- err
	}()
	<-reached
	p.stop()
	if err := <-done; !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Create: %v, want ErrUnavailable", err)
	}
	p.start(t)
	want := unsized(t)
	for range 2 {
		if got := b.Capabilities().Workspace; got != want {
			t.Errorf("the means is %q, want %q", got, want)
		}
	}
	spec := confined()
	if info := create(t, b, spec); info.Workspace != want {
		t.Errorf("the workspace is held by %q, want %q", info.Workspace, want)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("the engine was asked %d times", n)
	}
	v, err := engineAPI(t).VolumeInspect(t.Context(), "workcell-"+spec.ID+"-workspace")
	if err != nil {
		t.Fatal(err)
	}
	if size := v.Options["size"]; (size == "8388608") != (want == backend.WorkspaceProject) {
		t.Errorf("the engine gives the volume the size %q", size)
	}
}

// TestKeptMeans: a workspace that was kept is held by what it was made with, whatever the engine could give now.
func TestKeptMeans(t *testing.T) {
	t.Parallel()
	quota, disk := map[string]string{"size": "1048576"}, map[string]string{"type": "ext4", "device": "/d", "o": "nodev"}
	for _, c := range []struct {
		options map[string]string
		today   backend.WorkspaceMeans
		want    backend.WorkspaceMeans
	}{
		{nil, backend.WorkspaceSized, backend.WorkspaceWatched},
		{nil, backend.WorkspaceProject, backend.WorkspaceWatched},
		{quota, backend.WorkspaceSized, backend.WorkspaceProject},
		{quota, backend.WorkspaceProject, backend.WorkspaceProject},
		{disk, backend.WorkspaceSized, backend.WorkspaceSized},
	} {
		if got := docker.KeptMeans(c.options, c.today); got != c.want {
			t.Errorf("a volume with %v, today %q: %q, want %q", c.options, c.today, got, c.want)
		}
	}
}
