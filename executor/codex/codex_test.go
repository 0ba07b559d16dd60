package codex_test

import (
	"errors"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/codex"
	"github.com/workcell-dev/workcell/executor/internal/drivertest"
)

func TestPrepare(t *testing.T) {
	drivertest.Prepared(t, codex.Driver{}, codex.Version, drivertest.Tasks("gpt-5.1-codex", 0, map[string]string{"effort": "high"}))
}

// TestRefusedTasks: what the CLI cannot do is an error and not left out.
func TestRefusedTasks(t *testing.T) {
	for name, test := range map[string]struct {
		task executor.Task
		in   executor.Inside
		want error
	}{
		"no model":         {executor.Task{Prompt: "x", Model: "gpt-5.1-codex"}, executor.Inside{}, backend.ErrUnsupported},
		"unknown argument": {executor.Task{Prompt: "x", Model: "gpt-5.1-codex", Args: map[string]string{"x": "y"}}, drivertest.Inside(), backend.ErrInvalid},
		"turns":            {executor.Task{Prompt: "x", MaxTurns: 3}, drivertest.Inside(), backend.ErrUnsupported},
	} {
		if _, err := (codex.Driver{}).Prepare(test.task, test.in); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRecorded(t *testing.T) {
	drivertest.Recorded(t, codex.Driver{}, map[string]executor.Outcome{
		"tool": executor.Completed, "shell": executor.Completed, "resume": executor.Completed, "schema": executor.Completed,
		"thinking": executor.Completed, "refused": executor.AuthError, "broken": executor.ModelError,
	}, map[string]int{"refused": 1, "broken": 1, "max_turns": 1})
}

func FuzzParser(f *testing.F) { drivertest.Fuzz(f, codex.Driver{}) }
