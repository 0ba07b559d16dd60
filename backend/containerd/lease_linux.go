package containerd

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// leased runs f, which creates unreferenced content or snapshots, under a lease as protection from the garbage
// collector. It deletes the lease after f, even if ctx has ended. If this process dies, the lease expires. f must not
// take longer than limit.
func (b *driver) leased(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	service := b.api.LeasesService()
	// The expiry counts from now. The margin prevents a lease from expiring before f returns after the limit.
	l, err := service.Create(ctx, leases.WithRandomID(), leases.WithExpiration(limit+time.Minute))
	if err != nil {
		return err
	}
	defer func() {
		// If containerd does not respond, the caller waits no longer than for other calls, because the lease expires anyway.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(kit.CleanupTimeout, b.opts.Patience))
		defer cancel()
		if err := service.Delete(ctx, l); err != nil {
			b.opts.Logger.Debug("containerd: cannot delete a lease, it will expire", "error", err)
		}
	}()
	return f(leases.WithLease(ctx, l.ID))
}

// collect makes containerd delete the files of removed snapshots now. Otherwise containerd deletes them at a later
// time. containerd collects garbage on request only when a lease is deleted, so collect creates a lease for this
// purpose.
func (b *driver) collect(ctx context.Context) {
	ctx, cancel := b.calls.Bound(ctx, b.opts.CallTimeout)
	defer cancel()
	service := b.api.LeasesService()
	// The expiry removes the lease if this process dies before it deletes the lease.
	l, err := service.Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Minute))
	if err == nil {
		err = service.Delete(ctx, l, leases.SynchronousDelete)
	}
	if err != nil {
		b.opts.Logger.Debug("containerd: cannot collect garbage, containerd does it later", "error", err)
	}
}
