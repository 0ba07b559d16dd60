// Package snapshots keeps states of a workspace beside it, and gives them back.
//
// A snapshot is a directory with copies of the files, which share their blocks where the file system can do that. A
// file that is as it was in the snapshot that was made or rolled back to last is another name of the file there:
// snapshots are never written to. A file system in a file is mounted to copy its files. The directory with the
// snapshots is removed with the workspace. Snapshots are complete under another name before they get their own.
//
// A rollback touches only files that have changed. That a file is the one which was copied shows in its inode number
// and the time of its last change, which programs cannot set; what a process may write to without that is copied in any
// case.
package snapshots

import (
	"context"
	"errors"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
)

// ErrNone: a fork is of a snapshot that is not there.
var ErrNone = fmt.Errorf("snapshot not found: %w", backend.ErrNotFound)

// Waited returns ErrBusy if a call failed because ctx reached its deadline, while it waited for the workspace.
func Waited(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("a rollback or snapshot of the workspace is in progress: %w", backend.ErrBusy)
	}
	return err
}
