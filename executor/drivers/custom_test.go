package drivers_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/executor/internal/drivertest"
	"github.com/workcell-dev/workcell/sandbox"
)

func custom() drivers.Custom {
	return drivers.Custom{Argv: []string{"agent", "--turns={max_turns}", "--schema", "{schema}", "--system={system}", "--", "{prompt}"}, JSON: true}
}

func TestCustomPrepare(t *testing.T) {
	drivertest.Prepared(t, "testdata/custom", custom(), "1", drivertest.Tasks("claude-sonnet-4-5", 40, nil))
}

// TestPrompt verifies that the prompt contains everything without a placeholder in the command line. The prompt is the
// standard input unless it is an argument.
func TestPrompt(t *testing.T) {
	inv, err := (drivers.Custom{Argv: []string{"agent", "-m", "{model}"}}).Prepare(executor.Task{Prompt: "ask", System: "terse", Model: "m", Schema: json.RawMessage(`{"type":"object"}`)}, drivertest.Inside())
	if err != nil || !slices.Equal(inv.Argv, []string{"agent", "-m", "m"}) || !inv.Text {
		t.Errorf("%+v, %v", inv, err)
	}
	if got := string(inv.Stdin); !strings.HasPrefix(got, "terse\n\nask\n\n") || !strings.HasSuffix(got, `{"type":"object"}`) {
		t.Errorf("%q", got)
	}
}

func TestCustomRefusedTasks(t *testing.T) {
	for name, test := range map[string]struct {
		d    drivers.Custom
		task executor.Task
		want error
	}{
		"turns":       {drivers.Custom{Argv: []string{"agent"}}, executor.Task{Prompt: "x", MaxTurns: 3}, backend.ErrUnsupported},
		"argument":    {custom(), executor.Task{Prompt: "x", Args: map[string]string{"x": "y"}}, backend.ErrInvalid},
		"no program":  {drivers.Custom{}, executor.Task{Prompt: "x"}, backend.ErrInvalid},
		"long prompt": {custom(), executor.Task{Prompt: strings.Repeat("x", 1<<20)}, backend.ErrInvalid},
		"NUL":         {custom(), executor.Task{Prompt: "a\x00b"}, backend.ErrInvalid},
	} {
		if _, err := test.d.Prepare(test.task, drivertest.Inside()); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCustomRecorded(t *testing.T) {
	drivertest.Recorded(t, "testdata/custom", custom(), map[string]executor.Outcome{"tool": executor.Completed, "unfinished": executor.Completed, "hostile": executor.Unparsable}, nil)
}

func FuzzCustom(f *testing.F) { drivertest.Fuzz(f, "testdata/custom", custom()) }

// TestText verifies that all output lines are the answer, including empty lines.
func TestText(t *testing.T) {
	p, text := drivers.Custom{}.Parser(), ""
	for _, line := range []string{"", "a", "", `{"kind":"end"}`} {
		for _, e := range p.Line([]byte(line)) {
			text += e.Text
		}
	}
	if text != "\na\n\n{\"kind\":\"end\"}" {
		t.Errorf("%q", text)
	}
	clean, failed := sandbox.ExecStatus{Status: sandbox.ExecCompleted}, sandbox.ExecStatus{Status: sandbox.ExecCompleted, ExitCode: 1}
	if o := (drivers.Custom{}).Outcome(executor.Seen{}, clean); o != executor.Completed {
		t.Error(o)
	}
	if o := (drivers.Custom{}).Outcome(executor.Seen{Events: 1}, failed); o != executor.Crashed {
		t.Error(o)
	}
}

// TestLike verifies that a program with the output format of a CLI is parsed like this CLI.
func TestLike(t *testing.T) {
	events := (drivers.Custom{Like: drivers.Named("codex")}).Parser().Line([]byte(`{"type":"thread.started","thread_id":"t1"}`))
	if len(events) != 1 || events[0].Session != "t1" {
		t.Errorf("%+v", events)
	}
}
