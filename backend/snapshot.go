package backend

import (
	"context"
	"fmt"
	"regexp"
	"time"
)

// Snapshotter is implemented by drivers that can keep states of a workspace, give them back, and make further sandboxes of them
// (Spec.Fork). Snapshots belong to their workspace and are removed with it.
//
// Snapshot and Rollback must freeze the commands of the sandbox, or fail with ErrUnsupported. Both must be crash-safe:
// a snapshot exists completely or not at all, and an interrupted rollback leaves the workspace unchanged or is
// completed before the next access to the sandbox.
type Snapshotter interface {
	// Snapshot keeps the files of a running sandbox's workspace under a name that CheckSnapshotName accepts. ErrExists when the
	// name is taken, ErrCapacity when there are MaxSnapshots, ErrNoRoom when the disk is full.
	Snapshot(ctx context.Context, id, name string) (Snapshot, error)
	// Snapshots returns the snapshots of a sandbox, oldest first, and the mechanism of the next one; empty if the commands
	// cannot be frozen.
	Snapshots(ctx context.Context, id string) ([]Snapshot, SnapshotMechanism, error)
	// CopySnapshot gives a sandbox a snapshot of another one of its instance, under its name, to which it can be rolled back. The
	// errors are those of Snapshot, and those of Spec.Fork.
	CopySnapshot(ctx context.Context, id string, from ForkOf) error
	// RemoveSnapshot deletes one. One that is not there is no error.
	RemoveSnapshot(ctx context.Context, id, name string) error
	// Rollback must end everything that runs in the sandbox but the guest, and make the workspace what it was. The snapshot stays.
	Rollback(ctx context.Context, id, name string) error
}

// MaxSnapshots is how many snapshots a workspace may have.
const MaxSnapshots = 32

// SnapshotMechanism is how the files of a snapshot are made.
type SnapshotMechanism string

// Mechanisms.
const (
	SnapshotReflink SnapshotMechanism = "reflink" // shares its blocks with the workspace until one of them changes
	SnapshotCopy    SnapshotMechanism = "copy"    // takes the room of all its files
)

// Snapshot is a kept state of a workspace.
type Snapshot struct {
	Name      string            `json:"name"`
	Created   time.Time         `json:"created"`
	Mechanism SnapshotMechanism `json:"mechanism"`
}

// ForkOf names a snapshot of another sandbox.
type ForkOf struct {
	SessionID string // whose workspace it is of, of the same instance
	Snapshot  string
}

var snapshotNames = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\z`)

// CheckSnapshotName fails with ErrInvalid for what is no name of a snapshot: 1 to 128 letters, digits, '_', '-' and '.', the first
// of them a letter or a digit.
func CheckSnapshotName(name string) error {
	if !snapshotNames.MatchString(name) {
		return fmt.Errorf("%w: snapshot name %.80q: must be 1 to 128 letters, digits, '_', '-', or '.', starting with a letter or digit",
			ErrInvalid, name)
	}
	return nil
}
