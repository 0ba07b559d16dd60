package executor_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/sandbox"
)

// Judge returns the outcome of a CLI from its events and its exit code.
func ExampleJudge() {
	seen := executor.Seen{End: &executor.End{Outcome: executor.Completed}}
	done := sandbox.ExecStatus{Status: sandbox.ExecCompleted}
	fmt.Println(executor.Judge(seen, done, nil))
	done.ExitCode = 41
	fmt.Println(executor.Judge(executor.Seen{}, done, map[int]executor.Outcome{41: executor.AuthError}))
	// Output:
	// completed
	// auth_error
}
