package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
)

// Outcome is the result of a CLI's work.
type Outcome string

// Outcomes.
const (
	Completed  Outcome = "completed"   // finished with an answer
	MaxTurns   Outcome = "max_turns"   // reached Task.MaxTurns
	Budget     Outcome = "budget"      // stopped by Options.OverBudget
	Refused    Outcome = "refused"     // the model refused to answer
	ModelError Outcome = "model_error" // the model did not answer
	AuthError  Outcome = "auth_error"  // the model's API rejected the key
	TimedOut   Outcome = "timed_out"   // reached Options.Timeout
	Stalled    Outcome = "stalled"     // no events for Options.Stall
	Cancelled  Outcome = "cancelled"   // canceled by the context
	Crashed    Outcome = "crashed"     // exited without a result, or did not start
	Unparsable Outcome = "unparsable"  // exited with 0, but the end of the run was not recognized
)

// Errors of Result.Err for errors.Is.
var (
	// ErrBudget is the error for Budget.
	ErrBudget = errors.New("the budget is used up")
	// ErrMaxTurns is the error for MaxTurns.
	ErrMaxTurns = errors.New("the turns are used up")
	// ErrFailed is the error for failures of the CLI or the model.
	ErrFailed = errors.New("the coding agent failed")
)

// Err returns nil for a result with an answer. Otherwise, the error wraps ErrBudget for Budget, ErrMaxTurns for
// MaxTurns, backend.ErrTimeout for TimedOut and Stalled, context.Canceled for Cancelled, and ErrFailed for all other
// outcomes. If the CLI was killed at a limit of the sandbox, the error also wraps backend.ErrQuota.
func (r *Result) Err() error {
	if r.Outcome == Completed {
		return nil
	}
	kind := cmp.Or(map[Outcome]error{
		Budget: ErrBudget, MaxTurns: ErrMaxTurns, TimedOut: backend.ErrTimeout, Stalled: backend.ErrTimeout,
		Cancelled: context.Canceled,
	}[r.Outcome], ErrFailed)
	if st := r.Exit.Status; r.Outcome == Crashed && (st == sandbox.ExecOOMKilled || st == sandbox.ExecQuotaKilled) {
		kind = fmt.Errorf("%w: %w", ErrFailed, backend.ErrQuota)
	}
	if r.Detail == "" {
		return fmt.Errorf("%s: %w", r.Outcome, kind)
	}
	return fmt.Errorf("%s: %s: %w", r.Outcome, r.Detail, kind)
}

// Judge returns the outcome for most drivers. It prefers the result reported by the CLI, and then the outcome in byCode
// for the exit code. If a CLI reports completion but exits with an error, the outcome is Crashed.
func Judge(seen Seen, exit sandbox.ExecStatus, byCode map[int]Outcome) Outcome {
	clean := exit.Status == sandbox.ExecCompleted && exit.Signal == "" && exit.ExitCode == 0
	switch {
	case seen.End != nil && (clean || seen.End.Outcome != Completed):
		return seen.End.Outcome
	case clean:
		return Unparsable
	}
	if o, ok := byCode[exit.ExitCode]; ok && exit.Signal == "" && exit.Status == sandbox.ExecCompleted {
		return o
	}
	return Crashed
}
