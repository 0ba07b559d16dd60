package gemini_test

import (
	"errors"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/gemini"
	"github.com/workcell-dev/workcell/executor/internal/drivertest"
)

func TestPrepare(t *testing.T) {
	drivertest.Prepared(t, gemini.Driver{}, gemini.Version, drivertest.Tasks("gemini-2.5-pro", 40, nil))
}

// TestRefusedTasks: what the CLI cannot do is an error and not left out.
func TestRefusedTasks(t *testing.T) {
	for name, test := range map[string]struct {
		task executor.Task
		in   executor.Inside
		want error
	}{
		"no model":         {executor.Task{Prompt: "x", Model: "gemini-2.5-pro"}, executor.Inside{}, backend.ErrUnsupported},
		"unknown argument": {executor.Task{Prompt: "x", Model: "gemini-2.5-pro", Args: map[string]string{"x": "y"}}, drivertest.Inside(), backend.ErrInvalid},
	} {
		if _, err := (gemini.Driver{}).Prepare(test.task, test.in); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRecorded(t *testing.T) {
	drivertest.Recorded(t, gemini.Driver{}, map[string]executor.Outcome{
		"tool": executor.Completed, "shell": executor.Completed, "resume": executor.Completed, "schema": executor.Completed,
		"thinking": executor.Completed, "safety": executor.Refused, "refused": executor.AuthError, "broken": executor.ModelError, "max_turns": executor.MaxTurns,
	}, map[string]int{"refused": 1, "broken": 1, "max_turns": 1})
}

func FuzzParser(f *testing.F) { drivertest.Fuzz(f, gemini.Driver{}) }
