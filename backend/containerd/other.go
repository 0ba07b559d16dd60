//go:build !linux

package containerd

import (
	"context"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
)

// Backend is a [backend.SandboxBackend] on Linux. On other systems, New always fails.
type Backend struct {
	backend.SandboxBackend
}

// New returns ErrUnsupported, because the driver must run on containerd's host, which runs Linux.
func New(context.Context, *Options) (*Backend, error) {
	return nil, fmt.Errorf("containerd: requires Linux: %w", backend.ErrUnsupported)
}
