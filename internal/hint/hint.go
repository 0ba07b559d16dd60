// Package hint provides errors with a hint for the user.
package hint

import (
	"errors"
	"fmt"
)

// Kind is the exit code of a command.
type Kind int

// Kinds of errors for packages other than the command.
const (
	Failed      Kind = 0 // the class of the error determines the exit code
	Usage       Kind = 2 // wrong flags or arguments
	Model       Kind = 4 // the model cannot be used
	Unavailable Kind = 5 // the engine cannot be used
)

// Error is an error with a hint.
type Error struct {
	Kind Kind
	Err  error  // if nil, nothing is printed, because the output already contains the problem
	Hint string // may be empty
}

// New returns an error with a hint.
func New(kind Kind, err error, hint string) error { return &Error{kind, err, hint} }

// Error returns the message without the hint.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Kind)
	}
	return e.Err.Error()
}

// Unwrap returns the error that the hint is for.
func (e *Error) Unwrap() error { return e.Err }

// Of returns the outermost hint in an error, or nil if the error contains no hint.
func Of(err error) *Error {
	e, _ := errors.AsType[*Error](err)
	return e
}
