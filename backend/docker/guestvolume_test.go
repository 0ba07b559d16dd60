package docker_test

import (
	"context"
	"crypto/rand"
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

// TestGuestVolume verifies that several processes can fill the volume of a new guest version concurrently, that an
// emptied volume is filled again, and that a stale lock is taken over.
func TestGuestVolume(t *testing.T) {
	t.Parallel()
	api := engineAPI(t)
	guest := &backend.Guest{Version: strings.ToLower(rand.Text()), Binary: embed.Binary}
	name := "workcell-guest-" + guest.Version
	t.Cleanup(func() { must(t, api.VolumeRemove(context.Background(), name, true)) })
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
	must(t, api.VolumeRemove(t.Context(), name, false)) // as docker volume prune does
	info := backendtest.Create(t, b, newSpec())
	backendtest.Prints(t, backendtest.Dial(t, b, info.ID), "echo alive", "alive\n")
	backendtest.Remove(t, b, info.ID)

	must(t, api.VolumeRemove(t.Context(), name, false))
	if _, err := api.ContainerCreate(t.Context(), &container.Config{
		Image: debianImage, Labels: map[string]string{backend.LabelRole: backend.RoleInit},
	}, &container.HostConfig{NetworkMode: "none"}, nil, nil, name); err != nil {
		t.Fatal(err)
	}
	fresh := newBackend(t, func(o *docker.Options) { o.Guest = guest })
	fresh.SetFillPatience(time.Second)
	info = backendtest.Create(t, fresh, newSpec())
	backendtest.Prints(t, backendtest.Dial(t, fresh, info.ID), "echo alive", "alive\n")
	backendtest.Remove(t, fresh, info.ID)
}

// TestOldGuests verifies that the first use of a version removes the guest volumes of other versions, except new
// volumes, volumes of sandboxes, and volumes without Workcell labels. A version whose volume was removed must fill it
// again.
func TestOldGuests(t *testing.T) {
	t.Parallel()
	api := engineAPI(t)
	foreign := "workcell-guest-" + strings.ToLower(rand.Text())
	names := []string{foreign}
	t.Cleanup(func() {
		for _, name := range names {
			must(t, api.VolumeRemove(context.Background(), name, true))
		}
	})
	must(t, second(api.VolumeCreate(t.Context(), volume.CreateOptions{Name: foreign})))
	version := func(grace time.Duration) *docker.Backend {
		g := &backend.Guest{Version: strings.ToLower(rand.Text()), Binary: embed.Binary}
		names = append(names, "workcell-guest-"+g.Version)
		b := newBackend(t, func(o *docker.Options) { o.Guest = g })
		b.SetGuestGrace(grace)
		return b
	}
	there := func(name string) bool {
		_, err := api.VolumeInspect(t.Context(), name)
		if err != nil && !cerrdefs.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	old, busy := version(24*time.Hour), version(24*time.Hour)
	backendtest.Remove(t, old, backendtest.Create(t, old, newSpec()).ID)
	kept := backendtest.Create(t, busy, newSpec()).ID
	for _, grace := range []time.Duration{time.Hour, 0} {
		b := version(grace)
		backendtest.Remove(t, b, backendtest.Create(t, b, newSpec()).ID)
		if got := there(names[1]); got != (grace > 0) || !there(names[2]) || !there(foreign) {
			t.Errorf("behind a version with a grace of %v: old %v, busy %v, foreign %v", grace, got, there(names[2]), there(foreign))
		}
	}
	for b, id := range map[*docker.Backend]string{old: backendtest.Create(t, old, newSpec()).ID, busy: kept} {
		backendtest.Prints(t, backendtest.Dial(t, b, id), "echo alive", "alive\n")
		backendtest.Remove(t, b, id)
	}
}
