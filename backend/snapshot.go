package backend

import (
	"fmt"
	"regexp"
	"time"
)

// MaxSnapshots is the maximum number of snapshots per workspace.
const MaxSnapshots = 32

// SnapshotMechanism is the method used to copy the files of a snapshot.
type SnapshotMechanism string

// The snapshot mechanisms.
const (
	SnapshotReflink SnapshotMechanism = "reflink" // shares disk blocks with the workspace until a block changes
	SnapshotCopy    SnapshotMechanism = "copy"    // uses disk space for all files
)

// Snapshot describes a saved state of a workspace.
type Snapshot struct {
	Name      string            `json:"name"`
	Created   time.Time         `json:"created"`
	Mechanism SnapshotMechanism `json:"mechanism"`
}

// ForkOf identifies a snapshot of another sandbox.
type ForkOf struct {
	SessionID string // session owning the workspace, in the same instance
	Snapshot  string
}

var snapshotNames = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\z`)

// CheckSnapshotName returns an error wrapping ErrInvalid if name is not a valid snapshot name. A valid name has 1 to
// 128 letters, digits, '_', '-', and '.', and starts with a letter or a digit.
func CheckSnapshotName(name string) error {
	if !snapshotNames.MatchString(name) {
		return fmt.Errorf("%w: snapshot name %.80q: must be 1 to 128 letters, digits, '_', '-', or '.', "+
			"starting with a letter or digit", ErrInvalid, name)
	}
	return nil
}
