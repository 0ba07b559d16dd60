package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// OldGuests returns the volumes of other guest versions that no container has and that are older than an hour.
func (b *Backend) OldGuests(ctx context.Context) ([]backend.OldGuest, error) {
	return kit.Admit(ctx, b.d.calls, "", b.d.oldGuests)
}

func (b *driver) oldGuests(ctx context.Context) ([]backend.OldGuest, error) {
	list, err := kit.Call(ctx, b.calls, "list guests", func(ctx context.Context) (volume.ListResponse, error) {
		return b.api.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(
			filters.Arg("label", backend.LabelRole+"="+backend.RoleGuest), filters.Arg("dangling", "true"))})
	})
	if err != nil {
		return nil, err
	}
	var old []backend.OldGuest
	for _, v := range list.Volumes {
		if g, ok := b.oldGuest(v); ok {
			old = append(old, g)
		}
	}
	return old, nil
}

// oldGuest reports whether a volume holds the guest of another version and has for a while. Labels and name must agree: names
// alone are anybody's.
func (b *driver) oldGuest(v *volume.Volume) (backend.OldGuest, bool) {
	g := backend.OldGuest{Name: v.Name, Version: v.Labels[backend.LabelGuest]}
	if v.Labels[backend.LabelRole] != backend.RoleGuest || v.Name != namePre+"guest-"+g.Version || g.Version == b.guest.plain.guest.Version || g.Version == b.guest.readable.guest.Version {
		return g, false
	}
	var err error
	g.Created, err = time.Parse(time.RFC3339, v.CreatedAt)
	return g, err == nil && time.Since(g.Created) >= b.guest.grace
}

// RemoveOldGuest removes such a volume. The engine itself refuses one that a container has, and should a process of that
// version make a sandbox at this moment, its start fails and fills the volume again.
func (b *Backend) RemoveOldGuest(ctx context.Context, name string) error {
	_, err := kit.Admit(ctx, b.d.calls, "", func(ctx context.Context) (any, error) { return nil, b.d.removeOldGuest(ctx, name) })
	return err
}

func (b *driver) removeOldGuest(ctx context.Context, name string) error {
	v, err := b.inspectVolume(ctx, volumeName(name))
	if err == nil {
		if _, ok := b.oldGuest(&v); !ok {
			return fmt.Errorf("docker: volume %s is no old guest: %w", name, backend.ErrExists)
		}
		err = b.calls.Do(ctx, "remove guest", func(ctx context.Context) error { return b.api.VolumeRemove(ctx, name, false) })
	}
	if errors.Is(err, backend.ErrNotFound) {
		return nil
	}
	return err
}
