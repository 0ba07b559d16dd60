// Package hint has errors that say what the user can do about them.
package hint

import "errors"

// Kind is what the exit code of a command distinguishes where the error's own class does not.
type Kind int

// Kinds.
const (
	Failed      Kind = iota
	Usage            // wrong flags or arguments
	Unavailable      // no engine that can be used
	Model            // no model that can be used
)

// Error is an error with a hint.
type Error struct {
	Kind Kind
	Err  error
	Hint string // may be empty
}

// New returns an error with a hint.
func New(kind Kind, err error, hint string) error { return &Error{kind, err, hint} }

// Error returns the text without the hint.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error that the hint is for.
func (e *Error) Unwrap() error { return e.Err }

// Of returns the outermost hint of an error, nil for none.
func Of(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}
