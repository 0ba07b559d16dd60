//go:build !linux

package containerd

import (
	"context"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
)

// Backend is a [backend.SandboxBackend] on Linux; on other systems New always fails.
type Backend struct {
	backend.SandboxBackend
}

// New fails with ErrUnsupported: sandboxes on containerd need to be on containerd's own machine, which runs Linux.
func New(context.Context, *Options) (*Backend, error) {
	return nil, fmt.Errorf("containerd: requires Linux: %w", backend.ErrUnsupported)
}
