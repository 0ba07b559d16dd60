package rules

import "strings"

// isolatedPrefix begins the name of every isolated sandbox. The name of no other sandbox may begin with it.
const isolatedPrefix = "isolated."

// IsolatedName returns the name of the sandbox that belongs to owner alone. It depends on owner only, so that a resumed
// run finds its sandboxes again.
func IsolatedName(owner string) string { return isolatedPrefix + owner }

// Prefixes of the names of snapshots that a run creates, not its agents.
const (
	Checkpoint = "cp."   // what its sandboxes were at the end of a step
	ForkBase   = "fork." // what the items of a for_each begin with
	ForkKept   = "kept." // what one of them came to
)

// IsRunSnapshot reports whether a run, not an agent, created the snapshot with this name.
func IsRunSnapshot(name string) bool {
	return strings.HasPrefix(name, Checkpoint) || strings.HasPrefix(name, ForkBase) || strings.HasPrefix(name, ForkKept)
}

// IsIsolated reports whether an isolated sandbox has this name.
func IsIsolated(name string) bool { return strings.HasPrefix(name, isolatedPrefix) }
