//go:build !linux

package docker

import (
	"context"
	"fmt"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
)

// errSnapshots: snapshots are files of the engine's machine, which is another one here.
var errSnapshots = fmt.Errorf("docker: snapshots require Linux and an engine on this host: %w", backend.ErrUnsupported)

// Snapshot fails.
func (b *driver) Snapshot(context.Context, string, string) (backend.Snapshot, error) {
	return backend.Snapshot{}, errSnapshots
}

// Snapshots fails.
func (b *driver) Snapshots(context.Context, string) ([]backend.Snapshot, backend.SnapshotMechanism, error) {
	return nil, "", errSnapshots
}

// RemoveSnapshot fails.
func (b *driver) RemoveSnapshot(context.Context, string, string) error { return errSnapshots }

// CopySnapshot fails.
func (b *driver) CopySnapshot(context.Context, string, backend.ForkOf) error { return errSnapshots }

// Rollback fails.
func (b *driver) Rollback(context.Context, string, string) error { return errSnapshots }

func (b *driver) removeUnforked(ctx context.Context, v volumeName) error {
	return b.removeWorkspace(ctx, v)
}

func (b *driver) half(volume.Volume) bool                                { return false }
func (b *driver) whole(context.Context, container.InspectResponse) error { return nil }

func (b *driver) settle(context.Context, container.InspectResponse) error { return nil }
func (b *driver) thaw(context.Context, container.InspectResponse) error   { return nil }

func (c *creation) forkFiles(context.Context) error { return errSnapshots }
