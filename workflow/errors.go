package workflow

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Sentinel errors for runs whose end was not caused by a failed step. Use errors.Is to test for them. The error of a
// canceled run also wraps context.Canceled. The error of a timed-out run also wraps context.DeadlineExceeded.
var (
	// ErrInvalidInput means the run's input does not match the workflow's schema.
	ErrInvalidInput = errors.New("invalid input")
	// ErrLimit means a run exceeded a limit, for example max_steps, the items of a for_each, or its state size.
	ErrLimit = errors.New("limit exceeded")
	// ErrRecursion means a workflow was started inside its own run, or runs are nested too deep.
	ErrRecursion = errors.New("workflow recursion")
	// ErrJournal means the journal could not store an entry. The run is interrupted, because all actions must be
	// recorded.
	ErrJournal = errors.New("journal failed")
)

// Code is the reason why a step or a run failed. Errors of sandboxes have their own codes, for example "sandbox_lost",
// "image", or "unavailable".
type Code string

// Codes.
const (
	CodeAgent      Code = "agent_failed"
	codeExit       Code = "exit_code"
	codeKilled     Code = "killed"
	codeTimeout    Code = "timeout"
	CodeCancelled  Code = "canceled"
	codeExpression Code = "expression"
	CodeInput      Code = "invalid_input"
	codeOutput     Code = "invalid_output"
	codeTooLarge   Code = "too_large"
	codeNoMatch    Code = "no_match" // no matching case of a switch
	codeFailed     Code = "failed"   // a step of type fail
	codeBranches   Code = "branches" // failed branches or items
	codeMaxSteps   Code = "max_steps"
	codeMaxVisits  Code = "max_visits"
	codeLimit      Code = "limit"
	codePanic      Code = "panic"
	codeRecursion  Code = "recursion"
	codeJournal    Code = "journal"
	codeOutputs    Code = "outputs" // the run's outputs cannot be collected
	codeInternal   Code = "internal"

	CodeLost        Code = "sandbox_lost"
	codeInterrupted Code = "interrupted" // ErrInterrupted
)

// Error describes the failure of a step or a run.
type Error struct {
	Step    string    `json:"step,omitempty"`  // failed step; empty if no step caused the failure
	Where   string    `json:"where,omitempty"` // "file:line:column" of the failed expression
	Code    Code      `json:"code"`
	Message string    `json:"message"`
	Failed  []Failure `json:"failed,omitempty"` // for parallel and for_each: the failed branches or items, at most 100
	Limit   string    `json:"limit,omitempty"`  // sandbox limit a command reached; a retry would reach it again
	Final   bool      `json:"final,omitempty"`  // ends the run without retry and on_error
	Err     error     `json:"-"`                // error for errors.Is
}

// Failure is the failure of one branch or item.
type Failure struct {
	Branch  string `json:"branch,omitempty"` // for parallel
	Index   int    `json:"index,omitempty"`  // for for_each, starting at 0
	Step    string `json:"step,omitempty"`
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// Error returns the message with the step and the position. Only messages of steps of type fail have several lines.
func (e *Error) Error() string {
	text := e.Message
	if e.Step != "" {
		text = "step " + e.Step + ": " + text
	}
	if e.Where != "" {
		text = e.Where + ": " + text
	}
	return text
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(e, ErrLimit) true if a limit of the run caused e, even in a branch or before the run was resumed.
func (e *Error) Is(target error) bool {
	limit := func(c Code) bool { return c == codeMaxSteps || c == codeMaxVisits || c == codeLimit }
	return target == ErrLimit &&
		(limit(e.Code) || slices.ContainsFunc(e.Failed, func(f Failure) bool { return limit(f.Code) }))
}

// data returns the value of steps.<id>.error in expressions.
func (e *Error) data() map[string]any {
	out := map[string]any{"code": string(e.Code), "message": e.Message}
	if len(e.Failed) > 0 {
		list := make([]any, len(e.Failed))
		for i, f := range e.Failed {
			list[i] = map[string]any{"branch": f.Branch, "index": int64(f.Index), "step": f.Step, "code": string(f.Code),
				"message": f.Message}
		}
		out["failed"] = list
	}
	return out
}

// failf returns an Error wrapping err, which may be nil.
func failf(code Code, err error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}

// finalf is like failf for an Error ending the run without retry and on_error.
func finalf(code Code, err error, format string, args ...any) *Error {
	e := failf(code, err, format, args...)
	e.Final = true
	return e
}

// asError returns err as an Error. If err is not an Error, asError creates one.
func asError(err error, fallback Code) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	code := Code(telemetry.Class(err))
	switch {
	case errors.Is(err, context.Canceled):
		code = CodeCancelled
	case errors.Is(err, context.DeadlineExceeded):
		code = codeTimeout
	case code == "internal":
		code = fallback
	}
	return &Error{Code: code, Message: err.Error(), Err: err}
}

// withPosition adds the file position to the error of an expression. It returns other errors unchanged.
func (wf *Workflow) withPosition(err error) error {
	e, ok := errors.AsType[*expr.Error](err)
	if !ok {
		return err
	}
	if errors.Is(e.Err, context.Canceled) {
		return context.Canceled
	}
	out := &Error{Code: codeExpression, Message: e.Msg, Where: wf.where(e.Place)}
	if errors.Is(e, expr.ErrLimit) {
		out.Err = ErrLimit
	}
	return out
}

// where returns "file:line:column" of a position in the file.
func (wf *Workflow) where(at expr.Place) string {
	line, column := wf.src.Place(at.Node, at.Offset)
	return fmt.Sprintf("%s:%d:%d", wf.src.File, line, column)
}
