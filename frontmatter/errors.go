package frontmatter

import (
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Error is one problem in one file.
type Error struct {
	File    string // as given to Parse
	Line    int    // from 1; 0 when the problem is the whole file
	Column  int    // from 1; 0 when only the line is known
	Message string // what is wrong
	Hint    string // what to do about it; may be empty
}

// Error returns "file:line:column: message; hint".
func (e *Error) Error() string { return (*yamlnode.Problem)(e).Error() }

// InOrder compares problems for a stable sort: those of a file by their place, then those that are about the whole of it,
// then those of other files, which stay as they are.
func InOrder(file string) func(a, b *Error) int {
	rank := func(e *Error) []int {
		switch {
		case e.File != file:
			return []int{2}
		case e.Line == 0:
			return []int{1}
		}
		return []int{0, e.Line, e.Column}
	}
	return func(a, b *Error) int { return slices.Compare(rank(a), rank(b)) }
}

// Errors are all problems of a file, in the order of their lines. errors.As finds the first [*Error].
type Errors []*Error

// Error returns one line per problem.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the problems one by one.
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, one := range e {
		errs[i] = one
	}
	return errs
}
