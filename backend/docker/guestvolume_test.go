package docker_test

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// TestGuestVolume fills the volume of a new guest version from several processes at a time, empties it, and leaves a
// stale lock.
func TestGuestVolume(t *testing.T) {
	t.Parallel()
	api := engineAPI(t)
	guest := &docker.Guest{Version: strings.ToLower(rand.Text()), Binary: embed.Binary}
	name := "workcell-guest-" + guest.Version
	t.Cleanup(func() {
		if err := api.VolumeRemove(context.Background(), name, true); err != nil {
			t.Error(err)
		}
	})
	backends := make([]*docker.Backend, 4)
	for i := range backends {
		backends[i] = newBackend(t, func(o *docker.Options) { o.Guest = guest })
	}
	var wg sync.WaitGroup
	for _, b := range backends {
		for range 2 {
			wg.Go(func() {
				info, err := b.Create(t.Context(), newSpec())
				if err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				remove(t, b, info.ID)
			})
		}
	}
	wg.Wait()
	if _, err := api.ContainerInspect(t.Context(), name); err == nil {
		t.Error("the lock is left")
	}
	v, err := api.VolumeInspect(t.Context(), name)
	if want := map[string]string{backend.LabelRole: backend.RoleGuest, backend.LabelGuest: guest.Version}; err != nil || !cmp.Equal(v.Labels, want) {
		t.Errorf("labels %v, %v", v.Labels, err)
	}

	b := backends[0]
	if err := api.VolumeRemove(t.Context(), name, false); err != nil { // as a prune does
		t.Fatal(err)
	}
	info := create(t, b, newSpec())
	if got := sh(t, dial(t, b, info.ID), "echo alive"); got != "alive\n" {
		t.Errorf("after a prune: %q", got)
	}
	remove(t, b, info.ID)

	if err := api.VolumeRemove(t.Context(), name, false); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ContainerCreate(t.Context(), &container.Config{
		Image: debianImage, Labels: map[string]string{backend.LabelRole: backend.RoleInit},
	}, &container.HostConfig{NetworkMode: "none"}, nil, nil, name); err != nil {
		t.Fatal(err)
	}
	fresh := newBackend(t, func(o *docker.Options) { o.Guest = guest })
	fresh.SetFillPatience(time.Second)
	info = create(t, fresh, newSpec())
	if got := sh(t, dial(t, fresh, info.ID), "echo alive"); got != "alive\n" {
		t.Errorf("after a dead process: %q", got)
	}
	remove(t, fresh, info.ID)
}

func TestPing(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	e, err := b.Ping(t.Context())
	if err != nil || e.Name != "docker" || e.Version == "" || e.API == "" || e.Arch == "" || len(e.Runtimes) == 0 {
		t.Errorf("Ping: %+v, %v", e, err)
	}
	c := b.Capabilities()
	want := backend.Capabilities{
		Memory: true, CPU: true, PIDs: true, Workspace: c.Workspace, WritableRoot: true, Persistent: true, Runtimes: c.Runtimes,
		Networks: []backend.NetworkMode{backend.NetworkNone, backend.NetworkBridge},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("capabilities (-want +got)\n%s", diff)
	}
}
