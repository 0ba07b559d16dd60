package drivers_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/executor/internal/drivertest"
)

type outcomes = map[string]executor.Outcome

// expected is the expected behavior of a driver.
type expected struct {
	model    string
	turns    int
	args     map[string]string
	recorded outcomes // in addition to the recordings of all drivers
	refused  map[error]executor.Task
}

func all() map[string]expected {
	return map[string]expected{
		"claude": {
			"claude-sonnet-4-5", 40, map[string]string{"effort": "high", "bare": "true"},
			outcomes{"safety": executor.Refused, "max_turns": executor.MaxTurns},
			map[error]executor.Task{backend.ErrTooLarge: {Prompt: "x", Schema: make([]byte, 121<<10)}},
		},
		"codex": {
			"gpt-5.1-codex", 0, map[string]string{"effort": "high"}, nil,
			map[error]executor.Task{backend.ErrUnsupported: {Prompt: "x", MaxTurns: 3}},
		},
		"gemini": {"gemini-2.5-pro", 40, nil, outcomes{"safety": executor.Refused, "max_turns": executor.MaxTurns, "loop": executor.ModelError}, nil},
		"opencode": {
			"anthropic/claude-sonnet-4-5", 40, nil,
			outcomes{"safety": executor.Refused, "max_turns": executor.Crashed}, // the CLI does not exit
			map[error]executor.Task{backend.ErrInvalid: {Prompt: "x", Model: "gpt-5"}},
		},
	}
}

func TestPrepare(t *testing.T) {
	for name, d := range all() {
		driver := drivers.Named(name)
		drivertest.Prepared(t, "testdata/"+name, driver, driver.Version, drivertest.Tasks(d.model, d.turns, d.args))
	}
}

// TestLooseSchema verifies that Codex gets a schema in the prompt if OpenAI would reject it as an option.
func TestLooseSchema(t *testing.T) {
	const all = `{"type":"object","required":["a"],"additionalProperties":false,`
	for schema, option := range map[string]bool{
		all + `"properties":{"a":{"type":"string"}}}`:                                         true,
		all + `"properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]}}}`:             true,
		all + `"properties":{"a":{"oneOf":[{"type":"string"},{"type":"null"}]}}}`:             false,
		all + `"properties":{"a":{"type":"string"}},"anyOf":[{}]}`:                            false,
		`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`: false,
		`{"type":"array","items":{"type":"string"}}`:                                          false,
	} {
		task := executor.Task{Prompt: "ask", Model: "m", Schema: []byte(schema)}
		inv, err := drivers.Named("codex").Prepare(task, drivertest.Inside())
		told := strings.Contains(string(inv.Stdin), schema)
		if err != nil || slices.Contains(inv.Argv, "--output-schema") != option || told == option {
			t.Errorf("%s: %+v, %v", schema, inv, err)
		}
	}
}

// TestRefusedTasks verifies that a task that the CLI cannot run is an error.
func TestRefusedTasks(t *testing.T) {
	for name, d := range all() {
		prepare := func(task executor.Task, in executor.Inside, want error) {
			if _, err := drivers.Named(name).Prepare(task, in); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
		prepare(executor.Task{Prompt: "x", Model: d.model}, executor.Inside{}, backend.ErrUnsupported)
		unknown := executor.Task{Prompt: "x", Model: d.model, Args: map[string]string{"x": "y"}}
		prepare(unknown, drivertest.Inside(), backend.ErrInvalid)
		for want, task := range d.refused {
			prepare(task, drivertest.Inside(), want)
		}
	}
}

func TestRecorded(t *testing.T) {
	for name, d := range all() {
		want := outcomes{
			"tool": executor.Completed, "shell": executor.Completed, "resume": executor.Completed, "schema": executor.Completed,
			"thinking": executor.Completed, "refused": executor.AuthError, "broken": executor.ModelError,
		}
		maps.Copy(want, d.recorded)
		exit := map[string]int{"refused": 1, "broken": 1, "max_turns": 1}
		drivertest.Recorded(t, "testdata/"+name, drivers.Named(name), want, exit)
	}
}

func FuzzClaude(f *testing.F)   { drivertest.Fuzz(f, "testdata/claude", drivers.Named("claude")) }
func FuzzCodex(f *testing.F)    { drivertest.Fuzz(f, "testdata/codex", drivers.Named("codex")) }
func FuzzGemini(f *testing.F)   { drivertest.Fuzz(f, "testdata/gemini", drivers.Named("gemini")) }
func FuzzOpenCode(f *testing.F) { drivertest.Fuzz(f, "testdata/opencode", drivers.Named("opencode")) }
