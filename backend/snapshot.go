package backend

import (
	"fmt"
	"regexp"
	"time"
)

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

// CheckSnapshotName fails with ErrInvalid for what is no name of a snapshot: 1 to 128 letters, digits, '_', '-' and
// '.', the first of them a letter or a digit.
func CheckSnapshotName(name string) error {
	if !snapshotNames.MatchString(name) {
		return fmt.Errorf("%w: snapshot name %.80q: must be 1 to 128 letters, digits, '_', '-', or '.', starting with a letter or digit",
			ErrInvalid, name)
	}
	return nil
}
