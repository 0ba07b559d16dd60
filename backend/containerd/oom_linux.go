package containerd

import (
	"context"
	"errors"

	cgroupsv1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroupsv2 "github.com/containerd/cgroups/v3/cgroup2/stats"

	"github.com/workcell-dev/workcell/backend"
)

// OOMKills counts how often a process of the sandbox was killed for lack of memory since the sandbox was started.
func (b *Backend) OOMKills(ctx context.Context, id string) (int64, error) {
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	r, err := b.own(ctx, id)
	if err != nil {
		return 0, err
	}
	n, err := b.countOOM(ctx, r.id)
	if errors.Is(err, backend.ErrNotFound) { // it does not run, and its control group is gone
		return 0, nil
	}
	return n, err
}

// oomKills is countOOM for a description: an unknown number is no kill.
func (b *Backend) oomKills(ctx context.Context, id string) int64 {
	n, err := b.countOOM(ctx, id)
	if err != nil {
		return 0
	}
	return n
}

// countOOM reads the kernel's counter.
func (b *Backend) countOOM(ctx context.Context, id string) (int64, error) {
	m, err := b.metrics(ctx, id)
	if err != nil {
		return 0, err
	}
	switch s := m.(type) {
	case *cgroupsv1.Metrics:
		return int64(s.GetMemoryOomControl().GetOomKill()), nil
	case *cgroupsv2.Metrics:
		return int64(s.GetMemoryEvents().GetOomKill()), nil
	}
	return 0, notFound(id)
}
