package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// OOMKills counts how often a process of the sandbox was killed for lack of memory since the sandbox was started, as
// far as the engine remembers: it keeps only its last few hundred events, so on a busy engine an old one is forgotten,
// and the guest, which reads the kernel's own counter where it can, knows better.
func (b *driver) OOMKills(ctx context.Context, id string) (int64, error) {
	res, err := b.own(ctx, id)
	if err != nil {
		return 0, err
	}
	n, err := kit.Call(ctx, b.calls, "events", func(ctx context.Context) (int64, error) {
		return b.countOOM(ctx, id, res.State.StartedAt)
	})
	if err == nil && n == 0 && res.State.OOMKilled {
		n = 1
	}
	return n, err
}

func (b *driver) countOOM(ctx context.Context, id, since string) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	info, err := b.api.Info(ctx) // for the engine's clock
	if err != nil {
		return 0, err
	}
	opts := events.ListOptions{
		Since: engineTime(since), Until: engineTime(info.SystemTime),
		Filters: filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)),
			filters.Arg("container", id), filters.Arg("event", string(events.ActionOOM))),
	}
	msgs, errs := b.api.Events(ctx, opts)
	var n int64
	for {
		select {
		case <-msgs:
			n++
		case err := <-errs:
			if errors.Is(err, io.EOF) { // everything up to Until was told
				return n, nil
			}
			return n, err
		}
	}
}

// engineTime returns a time as the engine wrote it in the form that its filters take.
func engineTime(s string) string {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return "0"
	}
	return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond())
}

// maxStats is more than the engine ever says of one container.
const maxStats = 1 << 20

// Usage asks the engine for one sample, without waiting for a second one to compare it to.
func (b *driver) Usage(ctx context.Context, id string) (backend.Usage, error) {
	res, err := b.own(ctx, id)
	if err != nil {
		return backend.Usage{}, err
	}
	if !res.State.Running {
		return backend.Usage{}, fmt.Errorf("%w: the container does not run", backend.ErrLost)
	}
	return kit.Call(ctx, b.calls, "stats", func(ctx context.Context) (backend.Usage, error) {
		answer, err := b.api.ContainerStatsOneShot(ctx, id)
		if err != nil {
			return backend.Usage{}, err
		}
		defer answer.Body.Close() // only read from
		var stats container.StatsResponse
		if err := json.NewDecoder(io.LimitReader(answer.Body, maxStats)).Decode(&stats); err != nil {
			return backend.Usage{}, err
		}
		return backend.Usage{
			CPU:         time.Duration(min(stats.CPUStats.CPUUsage.TotalUsage, 1<<62)),
			MemoryBytes: int64(min(stats.MemoryStats.Usage, 1<<62)),
		}, nil
	})
}
