package containerd

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// leased runs f, which creates unreferenced content or snapshots, under a lease as protection from the garbage
// collector. It deletes the lease after f, even if ctx has ended. If this process dies, the lease expires.
func (b *driver) leased(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	m := b.api.LeasesService()
	l, err := m.Create(ctx, leases.WithRandomID(), leases.WithExpiration(limit+time.Minute))
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(kit.CleanupTimeout, b.opts.Patience))
		defer cancel()
		if err := m.Delete(ctx, l); err != nil {
			b.log.Debug("containerd: cannot delete a lease, it will expire", "error", err)
		}
	}()
	return f(leases.WithLease(ctx, l.ID))
}

// collect makes containerd delete the files of removed snapshots now. Otherwise containerd deletes them at a later
// time.
func (b *driver) collect(ctx context.Context) {
	ctx, cancel := b.calls.Bound(ctx, b.opts.CallTimeout)
	defer cancel()
	m := b.api.LeasesService()
	l, err := m.Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Minute))
	if err == nil {
		err = m.Delete(ctx, l, leases.SynchronousDelete)
	}
	if err != nil {
		b.log.Debug("containerd: collecting garbage", "error", err)
	}
}
