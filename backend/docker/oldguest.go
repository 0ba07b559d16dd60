package docker

import (
	"context"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// removeOldGuests removes unused volumes of other guest versions after the grace period. The first use of a version calls it. A
// removal that fails is repeated by the next version. The engine refuses to remove the volume of a container. If a process of
// that version makes a sandbox at this moment, the start fails and fills the volume again.
func (b *driver) removeOldGuests(ctx context.Context) {
	list, err := kit.Call(ctx, b.calls, "list guests", func(ctx context.Context) (volume.ListResponse, error) {
		return b.api.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(
			filters.Arg("label", backend.LabelRole+"="+backend.RoleGuest), filters.Arg("dangling", "true"))})
	})
	for _, v := range list.Volumes {
		// Labels and name must agree: other programs may use such a name.
		version := v.Labels[backend.LabelGuest]
		made, timeErr := time.Parse(time.RFC3339, v.CreatedAt)
		if v.Name != namePre+"guest-"+version || version == b.guest.plain.guest.Version || version == b.guest.readable.guest.Version ||
			timeErr != nil || time.Since(made) < b.guest.grace {
			continue
		}
		if err := b.calls.Do(ctx, "remove guest", func(ctx context.Context) error { return b.api.VolumeRemove(ctx, v.Name, false) }); err == nil {
			b.log.Info("docker: removed a guest agent of another version", "volume", v.Name)
		}
	}
	if err != nil {
		b.log.Warn("docker: cannot list guest agents of other versions", "error", err)
	}
}
