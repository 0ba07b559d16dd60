//go:build !linux

package local

import (
	"context"
	"fmt"
	"runtime"

	"github.com/workcell-dev/workcell/backend"
)

// Backend is a [backend.SandboxBackend] without an engine. It is not available on this operating system.
type Backend struct{ backend.SandboxBackend }

// New returns backend.ErrUnsupported, because the driver requires Linux namespaces.
func New(context.Context, *Options) (*Backend, error) {
	return nil, fmt.Errorf("local: requires Linux, this host runs %s; use docker: %w",
		runtime.GOOS, backend.ErrUnsupported)
}
