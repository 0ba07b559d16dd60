package executor

import (
	"errors"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
)

// Outcome is how the work of a CLI ended.
type Outcome string

// The outcomes.
const (
	Completed  Outcome = "completed"   // with an answer
	MaxTurns   Outcome = "max_turns"   // Task.MaxTurns are over
	Budget     Outcome = "budget"      // Options.OverBudget ended it
	Refused    Outcome = "refused"     // the model refused to answer
	ModelError Outcome = "model_error" // the model did not answer
	AuthError  Outcome = "auth_error"  // the model's API refused the key
	TimedOut   Outcome = "timed_out"   // after Options.Timeout
	Stalled    Outcome = "stalled"     // nothing was told for Options.Stall
	Cancelled  Outcome = "cancelled"   // by the context
	Crashed    Outcome = "crashed"     // without its last word, or it did not begin
	Unparsable Outcome = "unparsable"  // nothing of what it told was known
)

// What ended a CLI, for errors.Is with Result.Err.
var (
	// ErrBudget is for Budget.
	ErrBudget = errors.New("the budget is used up")
	// ErrMaxTurns is for MaxTurns.
	ErrMaxTurns = errors.New("the turns are used up")
	// ErrFailed is for what the CLI or its model is to blame for.
	ErrFailed = errors.New("the coding agent failed")
)

// Err returns nil for a result with an answer, and else an error: ErrBudget, ErrMaxTurns, backend.ErrTimeout for
// TimedOut, Stalled and Cancelled, ErrFailed for the others. If the CLI was killed at a limit of the sandbox, the error
// also wraps backend.ErrQuota.
func (r *Result) Err() error {
	kind := ErrFailed
	switch r.Outcome {
	case Completed:
		return nil
	case Budget:
		kind = ErrBudget
	case MaxTurns:
		kind = ErrMaxTurns
	case TimedOut, Stalled, Cancelled:
		kind = backend.ErrTimeout
	case Crashed:
		if st := r.Exit.Status; st == sandbox.ExecOOMKilled || st == sandbox.ExecQuotaKilled {
			kind = fmt.Errorf("%w: %w", ErrFailed, backend.ErrQuota)
		}
	}
	if r.Detail == "" {
		return fmt.Errorf("%s: %w", r.Outcome, kind)
	}
	return fmt.Errorf("%s: %s: %w", r.Outcome, r.Detail, kind)
}

// Judge returns the outcome that most drivers return: what the CLI said, if it said so; else what byCode knows of its
// exit code. A CLI that says it completed and then exits with an error has crashed.
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
