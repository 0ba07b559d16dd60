package rules

import "strings"

// isolatedPrefix is the prefix of the names of isolated sandboxes. Names of other sandboxes cannot start with it.
const isolatedPrefix = "isolated."

// IsolatedName returns the name of the sandbox that belongs only to owner. The name depends only on owner, to ensure
// that a resumed run finds its sandboxes again.
func IsolatedName(owner string) string { return isolatedPrefix + owner }

// Prefixes of the names of a run's own snapshots.
const (
	Checkpoint = "cp."   // the sandboxes at the end of a step
	ForkBase   = "fork." // the common start for the items of a for_each
	ForkKept   = "kept." // the result of one of the items
)

// IsRunSnapshot reports whether the snapshot with this name was created by a run, not by an agent.
func IsRunSnapshot(name string) bool {
	return strings.HasPrefix(name, Checkpoint) || strings.HasPrefix(name, ForkBase) || strings.HasPrefix(name, ForkKept)
}

// IsIsolated reports whether the name belongs to an isolated sandbox.
func IsIsolated(name string) bool { return strings.HasPrefix(name, isolatedPrefix) }
