package docker

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// removeOldGuests removes unused volumes of other guest versions after the grace period. The first use of a version
// calls it. If a removal fails, the next version tries again. The engine refuses to remove the volume of a container.
// If a process of the removed version creates a sandbox at this moment, the start fails and fills the volume again.
func (b *driver) removeOldGuests(ctx context.Context) {
	list, err := b.unusedVolumes(ctx, backend.LabelRole, backend.RoleGuest)
	for _, v := range list {
		// Labels and name must match, because other programs may use such a name.
		version := v.Labels[backend.LabelGuest]
		made, timeErr := time.Parse(time.RFC3339, v.CreatedAt)
		current := version == b.guest.plain.guest.Version || version == b.guest.readable.guest.Version
		if v.Name != namePre+"guest-"+version || current || timeErr != nil || time.Since(made) < b.guest.grace {
			continue
		}
		if b.calls.Do(ctx, "remove guest", kit.Bind(b.api.VolumeRemove, v.Name, false)) == nil {
			b.log.Info("docker: removed a guest agent of another version", "volume", v.Name)
		}
	}
	if err != nil {
		b.log.Warn("docker: cannot list guest agents of other versions", "error", err)
	}
}
