// Package bound holds the bounds that packages have in common which do not import each other.
package bound

import "time"

// ExecTimeout is the longest time that a command may take.
const ExecTimeout = time.Hour
