package workflow

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Sentinels for what ends a run besides a failed step. Test with errors.Is; a cancelled run also is context.Canceled,
// one that ran out of time context.DeadlineExceeded.
var (
	// ErrInvalidInput: the run's input does not fit the workflow's schema.
	ErrInvalidInput = errors.New("invalid input")
	// ErrLimit: a run passed one of its caps: max_steps, items of a for_each, bytes it may remember.
	ErrLimit = errors.New("limit exceeded")
	// ErrRecursion: a workflow was started from inside a run of itself, or runs are nested too deep.
	ErrRecursion = errors.New("workflow recursion")
	// ErrJournal: the journal could not take an entry, which interrupts the run; nothing may happen that is not recorded.
	ErrJournal = errors.New("journal failed")
)

// Code is the reason why a step or a run failed. Errors of sandboxes keep their own class ("sandbox_lost", "image",
// "unavailable", …).
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
	codeNoMatch    Code = "no_match" // no case of a switch
	codeFailed     Code = "failed"   // a step of type fail
	codeBranches   Code = "branches" // branches or items failed
	codeMaxSteps   Code = "max_steps"
	codeMaxVisits  Code = "max_visits"
	codeLimit      Code = "limit"
	codePanic      Code = "panic"
	codeRecursion  Code = "recursion"
	codeJournal    Code = "journal"
	codeOutputs    Code = "outputs" // what the run made cannot be brought home
	codeInternal   Code = "internal"

	CodeLost        Code = "sandbox_lost"
	codeInterrupted Code = "interrupted" // ErrInterrupted
)

// Error describes how a step or a run failed.
type Error struct {
	Step    string    `json:"step,omitempty"`  // empty when no step is to blame
	Where   string    `json:"where,omitempty"` // "file:line:column" of the expression that failed
	Code    Code      `json:"code"`
	Message string    `json:"message"`
	Failed  []Failure `json:"failed,omitempty"` // of parallel and for_each: the branches or items, at most 100
	Limit   string    `json:"limit,omitempty"`  // of the sandbox, that a command reached: a retry would reach it again
	Final   bool      `json:"final,omitempty"`  // it ends the run: no retry and no on_error may follow
	Err     error     `json:"-"`                // what callers may test for
}

// Failure is the failure of one branch or item.
type Failure struct {
	Branch  string `json:"branch,omitempty"` // of parallel
	Index   int    `json:"index,omitempty"`  // of for_each, from 0
	Step    string `json:"step,omitempty"`
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// Error returns one line.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Where != "" {
		b.WriteString(e.Where + ": ")
	}
	if e.Step != "" {
		b.WriteString("step " + e.Step + ": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// Unwrap returns the error that callers may test for.
func (e *Error) Unwrap() error { return e.Err }

// data is what expressions read as steps.<id>.error.
func (e *Error) data() map[string]any {
	out := map[string]any{"code": string(e.Code), "message": e.Message}
	if len(e.Failed) > 0 {
		list := make([]any, len(e.Failed))
		for i, f := range e.Failed {
			list[i] = map[string]any{"branch": f.Branch, "index": int64(f.Index), "step": f.Step, "code": string(f.Code), "message": f.Message}
		}
		out["failed"] = list
	}
	return out
}

// asError returns the Error for anything that a step may fail with.
func asError(err error, fallback Code) *Error {
	var e *Error
	if errors.As(err, &e) {
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

// placed returns the Error of a failed evaluation, with its place in the file; other errors as they are.
func (wf *Workflow) placed(err error) error {
	var e *expr.Error
	if !errors.As(err, &e) {
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

// where returns "file:line:column" of a place in the file.
func (wf *Workflow) where(at expr.Place) string {
	line, column := wf.src.Place(at.Node, at.Offset)
	return fmt.Sprintf("%s:%d:%d", wf.src.File, line, column)
}
