package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// maxStats is more than the engine ever says of one container.
const maxStats = 1 << 20

// Usage asks the engine for one sample, without waiting for a second one to compare it to.
func (b *driver) Usage(ctx context.Context, id string) (backend.Usage, error) {
	res, err := b.own(ctx, id)
	if err != nil {
		return backend.Usage{}, err
	}
	if !res.State.Running {
		return backend.Usage{}, fmt.Errorf("%w: the container is not running", backend.ErrLost)
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
