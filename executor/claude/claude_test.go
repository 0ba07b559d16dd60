package claude_test

import (
	"errors"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/claude"
	"github.com/workcell-dev/workcell/executor/internal/drivertest"
)

func TestPrepare(t *testing.T) {
	drivertest.Prepared(t, claude.Driver{}, claude.Version, drivertest.Tasks("claude-sonnet-4-5", 40, map[string]string{"effort": "high", "bare": "true"}))
}

// TestRefusedTasks: what the CLI cannot do is an error and not left out.
func TestRefusedTasks(t *testing.T) {
	for name, test := range map[string]struct {
		task executor.Task
		in   executor.Inside
		want error
	}{
		"no model":         {executor.Task{Prompt: "x", Model: "claude-sonnet-4-5"}, executor.Inside{}, backend.ErrUnsupported},
		"unknown argument": {executor.Task{Prompt: "x", Model: "claude-sonnet-4-5", Args: map[string]string{"x": "y"}}, drivertest.Inside(), backend.ErrInvalid},
		"long schema":      {executor.Task{Prompt: "x", Schema: make([]byte, 121<<10)}, drivertest.Inside(), backend.ErrTooLarge},
	} {
		if _, err := (claude.Driver{}).Prepare(test.task, test.in); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRecorded(t *testing.T) {
	drivertest.Recorded(t, claude.Driver{}, map[string]executor.Outcome{
		"tool": executor.Completed, "shell": executor.Completed, "resume": executor.Completed, "schema": executor.Completed,
		"thinking": executor.Completed, "safety": executor.Refused, "refused": executor.AuthError, "broken": executor.ModelError, "max_turns": executor.MaxTurns,
	}, map[string]int{"refused": 1, "broken": 1, "max_turns": 1})
}

func FuzzParser(f *testing.F) { drivertest.Fuzz(f, claude.Driver{}) }
