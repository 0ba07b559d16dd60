package hint

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is a mistake in a file, or in a value of a file, for example an unknown field.
type Problem struct {
	File    string // empty for a problem in a value
	Line    int    // starts at 1; 0 if the problem concerns the whole file
	Column  int    // starts at 1; 0 if only the line is known
	Field   string // path of a value, such as "limits.memory_mb"; may be empty
	Message string // describes the problem
	Hint    string // tells the user what to do; may be empty
	Err     error  // the class of the problem; may be nil
}

// Error returns "file:line:column: message; hint".
func (p *Problem) Error() string {
	text, at := p.Message, p.File
	if p.Hint != "" {
		text += "; " + p.Hint
	}
	if p.Line > 0 {
		at += fmt.Sprintf(":%d", p.Line)
		if p.Column > 0 {
			at += fmt.Sprintf(":%d", p.Column)
		}
	}
	if at == "" {
		return text
	}
	return at + ": " + text
}

// Unwrap returns the class of the problem.
func (p *Problem) Unwrap() error { return p.Err }

// Problems contains all problems in a file or a value. errors.As finds the first [*Problem].
type Problems []*Problem

// Add adds a problem with a field.
func (ps *Problems) Add(field, hint, format string, args ...any) {
	*ps = append(*ps, &Problem{Field: field, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// AddBelow adds the problems of a nested value, and puts prefix before their fields.
func (ps *Problems) AddBelow(prefix string, more Problems) {
	for _, p := range more {
		ps.Add(prefix+p.Field, p.Hint, "%s", p.Message)
	}
}

// Error returns one line for each problem.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the individual problems.
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

// Sort sorts the problems of a file by line and column. They are followed by the problems of the whole file, and then
// by those of other files.
func (ps Problems) Sort(file string) {
	rank := func(p *Problem) []int {
		switch {
		case p.File != file:
			return []int{2}
		case p.Line == 0:
			return []int{1}
		}
		return []int{0, p.Line, p.Column}
	}
	slices.SortStableFunc(ps, func(a, b *Problem) int { return slices.Compare(rank(a), rank(b)) })
}
