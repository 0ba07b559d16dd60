// Package snapshots stores snapshots of a workspace next to the workspace, and restores them.
//
// A snapshot is a directory with copies of the files. If the file system supports it, the copies share their disk
// blocks. If a file has not changed since the last snapshot or rollback, the new snapshot contains a hard link to the
// earlier copy. This is safe because snapshots are never modified. If the workspace is a file system in a file, the
// package mounts it to copy the files. Removing the workspace also removes the directory with the snapshots. A snapshot
// gets a name only when it is complete.
//
// A rollback changes only files different from the snapshot. To detect unchanged files, it compares the inode number
// and the time of the last change (ctime), which programs cannot set. Files modifiable without a change of the ctime
// are always copied.
package snapshots

import (
	"context"
	"errors"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
)

// ErrNone is the error for a missing snapshot of a fork.
var ErrNone = fmt.Errorf("snapshot not found: %w", backend.ErrNotFound)

// Waited returns ErrBusy if a call failed because ctx reached the deadline while the call waited for the workspace.
func Waited(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("a rollback or snapshot of the workspace is in progress: %w", backend.ErrBusy)
	}
	return err
}
