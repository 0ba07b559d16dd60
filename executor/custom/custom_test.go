package custom_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/custom"
	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/executor/internal/drivertest"
	"github.com/workcell-dev/workcell/session"
)

func driver() custom.Driver {
	return custom.Driver{Argv: []string{"agent", "--turns={max_turns}", "--schema", "{schema}", "--system={system}", "--", "{prompt}"}, JSON: true}
}

func TestPrepare(t *testing.T) {
	drivertest.Prepared(t, "testdata", driver(), "1", drivertest.Tasks("claude-sonnet-4-5", 40, nil))
}

// TestPrompt: what the command line has no place for is in the prompt, and that is the standard input unless it is an argument.
func TestPrompt(t *testing.T) {
	inv, err := (custom.Driver{Argv: []string{"agent", "-m", "{model}"}}).Prepare(executor.Task{Prompt: "ask", System: "terse", Model: "m", Schema: json.RawMessage(`{"type":"object"}`)}, drivertest.Inside())
	if err != nil || !slices.Equal(inv.Argv, []string{"agent", "-m", "m"}) || !inv.Text {
		t.Errorf("%+v, %v", inv, err)
	}
	if got := string(inv.Stdin); !strings.HasPrefix(got, "terse\n\nask\n\n") || !strings.HasSuffix(got, `{"type":"object"}`) {
		t.Errorf("%q", got)
	}
}

func TestRefusedTasks(t *testing.T) {
	for name, test := range map[string]struct {
		d    custom.Driver
		task executor.Task
		want error
	}{
		"turns":       {custom.Driver{Argv: []string{"agent"}}, executor.Task{Prompt: "x", MaxTurns: 3}, backend.ErrUnsupported},
		"argument":    {driver(), executor.Task{Prompt: "x", Args: map[string]string{"x": "y"}}, backend.ErrInvalid},
		"no program":  {custom.Driver{}, executor.Task{Prompt: "x"}, backend.ErrInvalid},
		"long prompt": {driver(), executor.Task{Prompt: strings.Repeat("x", 1<<20)}, backend.ErrInvalid},
		"NUL":         {driver(), executor.Task{Prompt: "a\x00b"}, backend.ErrInvalid},
	} {
		if _, err := test.d.Prepare(test.task, drivertest.Inside()); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRecorded(t *testing.T) {
	drivertest.Recorded(t, "testdata", driver(), map[string]executor.Outcome{"tool": executor.Completed, "unfinished": executor.Completed, "hostile": executor.Unparsable}, nil)
}

func FuzzParser(f *testing.F) { drivertest.Fuzz(f, "testdata", driver()) }

// TestText: what is printed is the answer, line by line, empty ones too.
func TestText(t *testing.T) {
	p, text := custom.Driver{}.Parser(), ""
	for _, line := range []string{"", "a", "", `{"kind":"end"}`} {
		for _, e := range p.Line([]byte(line)) {
			text += e.Text
		}
	}
	if text != "\na\n\n{\"kind\":\"end\"}" {
		t.Errorf("%q", text)
	}
	clean, failed := session.ExecStatus{Status: session.ExecCompleted}, session.ExecStatus{Status: session.ExecCompleted, ExitCode: 1}
	if o := (custom.Driver{}).Outcome(executor.Seen{}, clean); o != executor.Completed {
		t.Error(o)
	}
	if o := (custom.Driver{}).Outcome(executor.Seen{Events: 1}, failed); o != executor.Crashed {
		t.Error(o)
	}
}

// TestLike: a program that prints what a CLI prints is understood as that one.
func TestLike(t *testing.T) {
	events := (custom.Driver{Like: drivers.Named("codex")}).Parser().Line([]byte(`{"type":"thread.started","thread_id":"t1"}`))
	if len(events) != 1 || events[0].Session != "t1" {
		t.Errorf("%+v", events)
	}
}
