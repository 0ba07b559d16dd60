package workflow

import (
	"errors"
	"fmt"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
)

// TestLimitIsNotRetried verifies that a step that reached a limit of its sandbox is not retried. The step's error
// contains the limit, even if the command exited with an exit code.
func TestLimitIsNotRetried(t *testing.T) {
	t.Parallel()
	const exited, limit = "the command exited with code 1", "memory limit of 256 MiB reached (processes killed: 1)"
	ex := &execution{step: &step{typ: TypeExec, retry: retry{attempts: 3}}, run: &run{Engine: &Engine{}}}
	command := func(status sandbox.ExecState, code int, limit string) error {
		st := sandbox.ExecStatus{Status: status, ExitCode: code, Limit: limit}
		return commandError(sandbox.ExecResult{ExecStatus: st}, false)
	}
	inside := func(err error) error {
		return fanError([]*Error{nil, asError(err, codeInternal)}, "item", func(int, *Failure) string { return "2" })
	}
	for name, c := range map[string]struct {
		err   error
		text  string
		again bool
	}{
		"exit code":         {command(sandbox.ExecCompleted, 1, ""), exited, true},
		"exit code, limit":  {command(sandbox.ExecCompleted, 1, limit), exited + ": " + limit, false},
		"killed":            {command(sandbox.ExecOOMKilled, 137, limit), "the command was killed: " + limit, false},
		"item":              {inside(command(sandbox.ExecCompleted, 1, "")), "item 2 failed: " + exited, true},
		"item, limit":       {inside(command(sandbox.ExecCompleted, 1, limit)), "item 2 failed: " + exited + ": " + limit, false},
		"full workspace":    {fmt.Errorf("write: %w", backend.ErrQuota), "write: quota exceeded", false},
		"full disk of host": {fmt.Errorf("open: %w", backend.ErrNoRoom), "open: the host's disk is full: quota exceeded", true},
		"too many items":    {ex.checkItemBudget(maxItems + 1), "10001 items, at most 10000 are allowed", false},
		"other":             {errors.New("other"), "other", true},
	} {
		if again := ex.retries(t.Context(), c.err, 1); again != c.again || c.err.Error() != c.text {
			t.Errorf("%s: %q, repeated: %v", name, c.err, again)
		}
	}
	full := sandbox.ExecResult{ExecStatus: sandbox.ExecStatus{
		Status: sandbox.ExecCompleted, ExitCode: 1, QuotaExceeded: true, Limit: "workspace limit of 20 MiB reached",
	}}
	for i, again := range []bool{false, true} { // the second command finds the workspace full
		err := commandError(full, false)
		if ex.run.blame("sbx", full, err); ex.retries(t.Context(), err, 1) != again {
			t.Errorf("command %d: %v, want repeated: %v", i, err, again)
		}
	}
	succeeded := sandbox.ExecStatus{Status: sandbox.ExecCompleted, Limit: limit}
	if err := commandError(sandbox.ExecResult{ExecStatus: succeeded}, true); err != nil {
		t.Errorf("a command that succeeded: %v", err)
	}
}

// TestStrandedResults verifies for which errors a resumed run could collect the results.
func TestStrandedResults(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		backend.ErrTooLarge: false, backend.ErrLost: false, backend.ErrUnavailable: true,
		errors.Join(backend.ErrTooLarge, backend.ErrUnavailable): true,
	} {
		if got := isStranded(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}
