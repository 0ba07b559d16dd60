package backend

import (
	"context"
	"time"
)

// Usage is what a sandbox has used and uses now, by its engine's count. Zero is unknown.
type Usage struct {
	CPU         time.Duration // since it was started, of all its processes
	MemoryBytes int64
}

// UsageReporter is implemented by drivers whose engine can be asked what a sandbox uses.
type UsageReporter interface {
	// Usage must answer soon; ErrNotFound when the driver does not know the sandbox, ErrLost when it is not running.
	Usage(ctx context.Context, id string) (Usage, error)
}
