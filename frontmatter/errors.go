package frontmatter

import "github.com/workcell-dev/workcell/internal/hint"

// Error is a problem of a file, with its place. A problem of a [Sandbox] has a Field below `sandbox` instead.
type Error = hint.Problem

// Errors are all problems of a file, in the order of their lines. errors.As finds the first [*Error].
type Errors = hint.Problems
