// Package hint has errors that say what the user can do about them.
package hint

import (
	"errors"
	"fmt"
)

// Kind is the exit code of a command.
type Kind int

// Kinds of errors outside of the command.
const (
	Failed      Kind = 0 // the class of the error determines the code
	Usage       Kind = 2 // wrong flags or arguments
	Model       Kind = 4 // the model cannot be used
	Unavailable Kind = 5 // the engine cannot be used
)

// Error is an error with a hint.
type Error struct {
	Kind Kind
	Err  error  // nil: the output has said it, nothing is printed
	Hint string // may be empty
}

// New returns an error with a hint.
func New(kind Kind, err error, hint string) error { return &Error{kind, err, hint} }

// Error returns the text without the hint.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Kind)
	}
	return e.Err.Error()
}

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
