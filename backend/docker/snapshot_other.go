//go:build !linux

package docker

import (
	"context"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
)

// Snapshots need the engine's volume directory and Linux system calls, so this build has none, and the methods of
// backend.Unsupported apply. See snapshot_linux.go for the methods below.

type workspaceSnapshots = backend.Unsupported

func (b *driver) snapshotMethods() (none workspaceSnapshots) { return none }

func (b *driver) removeUnforked(ctx context.Context, v volumeName) error {
	return b.removeWorkspace(ctx, v)
}

func (b *driver) checkFork(context.Context, volume.Volume) error             { return nil }
func (b *driver) awaitFork(context.Context, container.InspectResponse) error { return nil }

// Recover does nothing because snapshots are not supported.
func (b *driver) Recover(context.Context, container.InspectResponse) error { return nil }

// Thaw does nothing because snapshots are not supported.
func (b *driver) Thaw(context.Context, container.InspectResponse) error { return nil }

func (c *creation) forkFiles(context.Context) error { return backend.ErrNoSnapshots }
