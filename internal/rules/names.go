package rules

import "strings"

// isolatedPrefix begins the name of every isolated sandbox. The name of no other sandbox may begin with it.
const isolatedPrefix = "isolated."

// IsolatedName returns the name of the sandbox that belongs to owner alone. It depends on owner only, so that a run that is
// resumed finds its sandboxes again.
func IsolatedName(owner string) string { return isolatedPrefix + owner }

// Beginnings of the names of snapshots that a run makes by itself.
const (
	Checkpoint = "cp."   // what its sandboxes were at the end of a step
	ForkBase   = "fork." // what the items of a for_each begin with
	ForkKept   = "kept." // what one of them came to
)

// IsRunSnapshot reports whether a snapshot is one that a run makes by itself.
func IsRunSnapshot(name string) bool {
	return strings.HasPrefix(name, Checkpoint) || strings.HasPrefix(name, ForkBase) || strings.HasPrefix(name, ForkKept)
}

// IsIsolated reports whether name is that of an isolated sandbox.
func IsIsolated(name string) bool { return strings.HasPrefix(name, isolatedPrefix) }
