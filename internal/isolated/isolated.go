// Package isolated names the sandboxes of a run that belong to one agent, step, branch or item alone, which nobody else in the
// run can reach and which are removed with their owner; and the snapshots that are a run's own, which no agent makes.
package isolated

import "strings"

// prefix begins the name of every isolated sandbox. The name of no other sandbox may begin with it.
const prefix = "isolated."

// Name returns the name of the sandbox that belongs to owner alone. It depends on owner only, so that a run that is
// resumed finds its sandboxes again.
func Name(owner string) string { return prefix + owner }

// Beginnings of the names of snapshots that a run makes by itself.
const (
	Checkpoint = "cp."   // what its sandboxes were at the end of a step
	ForkBase   = "fork." // what the items of a for_each begin with
	ForkKept   = "kept." // what one of them came to
)

// IsSnapshot reports whether a snapshot is one that a run makes by itself.
func IsSnapshot(name string) bool {
	return strings.HasPrefix(name, Checkpoint) || strings.HasPrefix(name, ForkBase) || strings.HasPrefix(name, ForkKept)
}

// Is reports whether name is that of an isolated sandbox.
func Is(name string) bool { return strings.HasPrefix(name, prefix) }
