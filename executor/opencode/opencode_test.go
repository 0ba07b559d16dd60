package opencode_test

import (
	"errors"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/internal/drivertest"
	"github.com/workcell-dev/workcell/executor/opencode"
)

func TestPrepare(t *testing.T) {
	drivertest.Prepared(t, opencode.Driver{}, opencode.Version, drivertest.Tasks("anthropic/claude-sonnet-4-5", 40, nil))
}

// TestRefusedTasks: what the CLI cannot do is an error and not left out.
func TestRefusedTasks(t *testing.T) {
	for name, test := range map[string]struct {
		task executor.Task
		in   executor.Inside
		want error
	}{
		"no model":         {executor.Task{Prompt: "x", Model: "anthropic/claude-sonnet-4-5"}, executor.Inside{}, backend.ErrUnsupported},
		"unknown argument": {executor.Task{Prompt: "x", Model: "anthropic/claude-sonnet-4-5", Args: map[string]string{"x": "y"}}, drivertest.Inside(), backend.ErrInvalid},
		"no provider":      {executor.Task{Prompt: "x", Model: "gpt-5"}, drivertest.Inside(), backend.ErrInvalid},
	} {
		if _, err := (opencode.Driver{}).Prepare(test.task, test.in); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRecorded(t *testing.T) {
	drivertest.Recorded(t, opencode.Driver{}, map[string]executor.Outcome{
		"tool": executor.Completed, "shell": executor.Completed, "resume": executor.Completed, "schema": executor.Completed,
		"thinking": executor.Completed, "safety": executor.Refused, "refused": executor.AuthError, "broken": executor.ModelError, "max_turns": executor.Crashed, // it does not end by itself
	}, map[string]int{"refused": 1, "broken": 1, "max_turns": 1})
}

func FuzzParser(f *testing.F) { drivertest.Fuzz(f, opencode.Driver{}) }
