package containerd

import (
	"context"
	"errors"
	"fmt"
	"time"

	cgroupsv1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroupsv2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/typeurl/v2"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// Usage returns what the sandbox's control group has counted.
func (b *Backend) Usage(ctx context.Context, id string) (backend.Usage, error) {
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return backend.Usage{}, err
	}
	defer done()
	// A control group outlives the sandbox's process, so the numbers alone do not show that it runs.
	if _, err := b.own(ctx, id); err != nil {
		return backend.Usage{}, err
	}
	r, err := b.running(ctx, id)
	if err != nil {
		return backend.Usage{}, err
	}
	m, err := b.metrics(ctx, r.id)
	if errors.Is(err, backend.ErrNotFound) {
		return backend.Usage{}, fmt.Errorf("containerd: the sandbox does not run: %w", backend.ErrLost)
	}
	if err != nil {
		return backend.Usage{}, err
	}
	return usageOf(m), nil
}

// usageOf reads the metrics of both versions of control groups.
func usageOf(metrics any) backend.Usage {
	switch m := metrics.(type) {
	case *cgroupsv1.Metrics:
		return usage(m.GetCPU().GetUsage().GetTotal(), time.Nanosecond, m.GetMemory().GetUsage().GetUsage())
	case *cgroupsv2.Metrics:
		return usage(m.GetCPU().GetUsageUsec(), time.Microsecond, m.GetMemory().GetUsage())
	}
	return backend.Usage{} // counted in a way that nobody here knows
}

func usage(cpu uint64, unit time.Duration, memory uint64) backend.Usage {
	const most = 1 << 62
	return backend.Usage{CPU: time.Duration(min(cpu, most/uint64(unit))) * unit, MemoryBytes: int64(min(memory, most))}
}

// metrics returns what a sandbox's control groups count; ErrNotFound when there are none.
func (b *Backend) metrics(ctx context.Context, id string) (any, error) {
	res, err := kit.Call(ctx, b.calls, "read metrics", func(ctx context.Context) (*tasks.MetricsResponse, error) {
		return b.api.TaskService().Metrics(ctx, &tasks.MetricsRequest{Filters: []string{"id==" + id}})
	})
	if err != nil {
		return nil, err
	}
	for _, m := range res.GetMetrics() {
		if m.GetID() != id || m.GetData() == nil {
			continue
		}
		data, err := typeurl.UnmarshalAny(m.GetData())
		if err != nil {
			return nil, b.calls.Fail(ctx, "read metrics", err)
		}
		return data, nil
	}
	return nil, notFound(id)
}

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
