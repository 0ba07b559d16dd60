package kit

import (
	"context"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
)

// ErrNoSnapshots is returned by engines that cannot keep states of a workspace.
var ErrNoSnapshots = fmt.Errorf("snapshots are not supported on this engine or host: %w", backend.ErrUnsupported)

// NoSnapshots is embedded by engines that cannot keep states of a workspace. Its methods return ErrNoSnapshots.
type NoSnapshots struct{}

// Snapshot fails.
func (NoSnapshots) Snapshot(context.Context, string, string) (backend.Snapshot, error) {
	return backend.Snapshot{}, ErrNoSnapshots
}

// Snapshots fails.
func (NoSnapshots) Snapshots(context.Context, string) ([]backend.Snapshot, backend.SnapshotMechanism, error) {
	return nil, "", ErrNoSnapshots
}

// CopySnapshot fails.
func (NoSnapshots) CopySnapshot(context.Context, string, backend.ForkOf) error { return ErrNoSnapshots }

// RemoveSnapshot fails.
func (NoSnapshots) RemoveSnapshot(context.Context, string, string) error { return ErrNoSnapshots }

// Rollback fails.
func (NoSnapshots) Rollback(context.Context, string, string) error { return ErrNoSnapshots }
