package frontmatter

import (
	"fmt"
	"strings"
)

// Error is one problem in one file.
type Error struct {
	File    string // as given to Parse
	Line    int    // from 1; 0 when the problem is the whole file
	Column  int    // from 1; 0 when only the line is known
	Message string // what is wrong
	Hint    string // what to do about it; may be empty
}

// Error gives "file:line:column: message; hint".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
		if e.Column > 0 {
			fmt.Fprintf(&b, ":%d", e.Column)
		}
	}
	b.WriteString(": ")
	b.WriteString(e.Message)
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// Errors are all problems of a file, in the order of their lines. errors.As finds the first [*Error].
type Errors []*Error

// Error gives one line per problem.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the problems one by one.
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, one := range e {
		errs[i] = one
	}
	return errs
}
