// Package isolated names the sandboxes of a run that belong to one agent, step, branch or item alone. Nobody else in the
// run can reach them, and they are removed with their owner.
package isolated

import "strings"

// prefix begins the name of every isolated sandbox. The name of no other sandbox may begin with it.
const prefix = "isolated."

// Name returns the name of the sandbox that belongs to owner alone. It depends on owner only, so that a run that is
// resumed finds its sandboxes again.
func Name(owner string) string { return prefix + owner }

// Is reports whether name is that of an isolated sandbox.
func Is(name string) bool { return strings.HasPrefix(name, prefix) }
