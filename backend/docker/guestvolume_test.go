package docker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// TestGuestVolume fills the volume of a new guest version from several processes at a time, empties it, and leaves a
// stale lock.
func TestGuestVolume(t *testing.T) {
	t.Parallel()
	api := engineAPI(t)
	guest := &backend.Guest{Version: strings.ToLower(rand.Text()), Binary: embed.Binary}
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
				backendtest.Remove(t, b, info.ID)
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
	info := backendtest.Create(t, b, newSpec())
	if got := backendtest.Sh(t, backendtest.Dial(t, b, info.ID), "echo alive"); got != "alive\n" {
		t.Errorf("after a prune: %q", got)
	}
	backendtest.Remove(t, b, info.ID)

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
	info = backendtest.Create(t, fresh, newSpec())
	if got := backendtest.Sh(t, backendtest.Dial(t, fresh, info.ID), "echo alive"); got != "alive\n" {
		t.Errorf("after a dead process: %q", got)
	}
	backendtest.Remove(t, fresh, info.ID)
}

// TestOldGuests removes what carries the guest of another version, unless a sandbox has it, it is new or it only looks like
// one. Who is about to use one that goes makes it again.
func TestOldGuests(t *testing.T) {
	t.Parallel()
	api := engineAPI(t)
	var guests []*backend.Guest
	for range 3 {
		guests = append(guests, &backend.Guest{Version: strings.ToLower(rand.Text()), Binary: embed.Binary})
	}
	foreign := "workcell-guest-" + strings.ToLower(rand.Text())
	names := []string{foreign}
	t.Cleanup(func() {
		for _, name := range names {
			if err := api.VolumeRemove(context.Background(), name, true); err != nil {
				t.Error(err)
			}
		}
	})
	if _, err := api.VolumeCreate(t.Context(), volume.CreateOptions{Name: foreign}); err != nil {
		t.Fatal(err)
	}
	var backends []*docker.Backend
	var ids []string
	for _, g := range guests {
		b := newBackend(t, func(o *docker.Options) { o.Guest = g })
		b.SetGuestGrace(0)
		backends, names = append(backends, b), append(names, "workcell-guest-"+g.Version)
		ids = append(ids, backendtest.Create(t, b, newSpec()).ID)
	}
	own, old, busy := backends[0], backends[1], backends[2]
	backendtest.Remove(t, own, ids[0])
	backendtest.Remove(t, old, ids[1])

	seen := func(b *docker.Backend) []string {
		t.Helper()
		list, err := b.OldGuests(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, g := range list {
			if g.Name != "workcell-guest-"+g.Version || g.Created.IsZero() {
				t.Errorf("%+v", g)
			}
			if slices.Contains(names, g.Name) { // others have theirs on this engine
				found = append(found, g.Name)
			}
		}
		return found
	}
	if got := seen(own); !slices.Equal(got, names[2:3]) {
		t.Errorf("old guests %v, want %v", got, names[2:3])
	}
	patient := newBackend(t, func(o *docker.Options) { o.Guest = guests[0] })
	if got := seen(patient); len(got) != 0 {
		t.Errorf("new guests are old: %v", got)
	}
	for name, b := range map[string]*docker.Backend{names[1]: own, names[2]: patient, names[3]: own, foreign: own} {
		if err := b.RemoveOldGuest(t.Context(), name); !errors.Is(err, backend.ErrExists) {
			t.Errorf("removing %s: %v", name, err)
		}
	}
	for range 2 {
		if err := own.RemoveOldGuest(t.Context(), names[2]); err != nil {
			t.Error(err)
		}
	}
	if _, err := api.VolumeInspect(t.Context(), names[2]); !cerrdefs.IsNotFound(err) {
		t.Errorf("the old guest: %v", err)
	}
	for b, id := range map[*docker.Backend]string{old: backendtest.Create(t, old, newSpec()).ID, busy: ids[2]} {
		if got := backendtest.Sh(t, backendtest.Dial(t, b, id), "echo alive"); got != "alive\n" {
			t.Errorf("afterwards: %q", got)
		}
		backendtest.Remove(t, b, id)
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	e, err := b.Ping(t.Context())
	if err != nil || e.Name != "docker" || e.Version == "" || e.API == "" || e.Arch == "" || len(e.OCIRuntimes) == 0 {
		t.Errorf("Ping: %+v, %v", e, err)
	}
	c := b.Capabilities()
	want := backend.Capabilities{
		Memory: true, CPU: true, PIDs: true, Workspace: c.Workspace, WritableRoot: true, RootEnforcement: backend.WorkspaceWatched, Persistent: true, OCIRuntimes: c.OCIRuntimes,
		Networks: []backend.NetworkMode{backend.NetworkNone, backend.NetworkBridge},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("capabilities (-want +got)\n%s", diff)
	}
}
