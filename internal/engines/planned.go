package engines

import (
	"context"

	"github.com/workcell-dev/workcell/backend"
)

// planned is a driver that makes no sandboxes.
type planned struct {
	driver
	plans func(ctx context.Context, driver backend.SandboxBackend, spec backend.Spec) error
}

// Planned returns a driver of Set that calls plans with what is to be made, and makes nothing. plans returns why.
func Planned(b backend.SandboxBackend, plans func(ctx context.Context, driver backend.SandboxBackend, spec backend.Spec) error) backend.SandboxBackend {
	return &planned{b.(driver), plans}
}

// Create makes nothing.
func (p *planned) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	return backend.Info{}, p.plans(ctx, p.driver, spec)
}
