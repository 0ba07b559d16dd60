package runcmd

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/workflow"
)

// TestInputFile verifies the values in an input file, even without a mapping.
func TestInputFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "{}", "null": "{}", "---\n# nothing\n": "{}", `{"a": 1}`: `{"a":1}`,
		"day: 2024-01-01\nin: [2001-12-14 21:59:43]": `{"day":"2024-01-01","in":["2001-12-14 21:59:43"]}`,
		"a: 1\n---\nb: 2\n":                          "", "[1]": "",
	} {
		a := &command{cli.New(strings.NewReader(text), nil, nil, "")}
		input, err := a.readInputFile(t.Context(), "-")
		got, _ := json.Marshal(input)
		if string(got) != want && (want != "" || err == nil) {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

// TestRunsShowWholeError verifies that the full text of a truncated error is below the table.
func TestRunsShowWholeError(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("why it failed ", 12) + "at the end\nand a second line"
	entry := workflow.Entry{Kind: workflow.EventStepFinished, Path: "ask", Type: workflow.TypeAgent, Agent: "coder", Visit: 1, Attempt: 2, Status: workflow.StatusFailed}
	for message, want := range map[string]string{"short": "", long: "\nask, attempt 2:\n  why it failed "} {
		entry.Error = &workflow.Error{Code: workflow.CodeAgent, Message: message}
		var b strings.Builder
		checktest.Must(t, printRun(&b, app.RunDetail{Entries: []workflow.Entry{entry}}, time.Now()))
		got := b.String()
		if want == "" && strings.Contains(got, "attempt 2:") || !strings.Contains(got, want) {
			t.Errorf("%s", got)
		}
		if want != "" && !strings.HasSuffix(got, " at the end\n  and a second line\n") {
			t.Errorf("the end is missing: %s", got)
		}
	}
}

// TestRunsShowControls verifies that texts of a journal cannot control the terminal, or a shell if a user copies a
// command.
func TestRunsShowControls(t *testing.T) {
	t.Parallel()
	const hostile = "a;\x1b[2J"
	list := []workflow.Entry{{Checkpoint: &workflow.Checkpoint{}},
		{Kind: workflow.EventStepFinished, Path: hostile, Status: workflow.StatusFailed}}
	var b strings.Builder
	part := app.TranscriptPart{Part: transcript.Part{Role: hostile}}
	checktest.Must(t, printTranscript(&b, []app.TranscriptPart{part}))
	for _, s := range []app.RunDetail{{Waiting: true}, {Entries: list}, {}} {
		s.ID, s.State = hostile, app.RunInterrupted
		checktest.Must(t, printRun(&b, s, time.Now()))
	}
	forgotten := cli.Printed[int]{Command: cli.New(nil, &b, nil, "")}
	forgotten.Add(hostile, 0)
	commands := strings.Split(b.String(), "workcell runs ")[1:]
	for _, c := range commands {
		if _, words, _ := strings.Cut(c, " "); !strings.HasPrefix(words, "'a;") || strings.Contains(words, "m a;") {
			t.Errorf("%q", c)
		}
	}
	if len(commands) != 3 || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%q", b.String())
	}
}

// TestRunsShowInterruptedAttempt verifies that the table has a row for an attempt whose process was killed.
func TestRunsShowInterruptedAttempt(t *testing.T) {
	t.Parallel()
	at := func(kind workflow.EventKind, repeats bool, status workflow.Status) workflow.Entry {
		return workflow.Entry{Kind: kind, Path: "build", Visit: 1, Attempt: 1, Repeats: repeats, Status: status}
	}
	shown := app.RunDetail{Entries: []workflow.Entry{
		at(workflow.EventStepStarted, false, workflow.StatusRunning),
		at(workflow.EventStepStarted, true, workflow.StatusRunning),
		at(workflow.EventStepFinished, false, workflow.StatusSucceeded),
	}}
	var got []string
	for _, row := range steps(shown) {
		got = append(got, row[4])
	}
	if strings.Join(got, " ") != "interrupted succeeded" {
		t.Errorf("%q", got)
	}
}

// TestRunsShowCost verifies that the usage and cost of agents are shown for each attempt, including failed attempts,
// and for the run. Unknown costs are not shown.
func TestRunsShowCost(t *testing.T) {
	t.Parallel()
	ended := func(path string, cost *float64) workflow.Entry {
		return workflow.Entry{Kind: workflow.EventStepFinished, Path: path, Type: workflow.TypeAgent, Agent: "coder", Visit: 1, Attempt: 1, CostUSD: cost}
	}
	some, none := .0125, 0.0
	entries := []workflow.Entry{ended("fix", &some), ended("again", &some), ended("free", &none), ended("unknown", nil)}
	entries[0].Usage = &workflow.Usage{Model: "m", In: 1200, Out: 34}
	total := some + some + none
	shown := app.RunDetail{Entries: entries}
	shown.CostUSD = &total
	shown.Usage = &workflow.Usage{In: 1300, Out: 50, CacheRead: 20, Estimated: true}
	var b strings.Builder
	checktest.Must(t, printRun(&b, shown, time.Now()))
	for _, want := range []string{"cost      $0.0250\n", "COST", "$0.0125", "$0.0000", "tokens    1300 in (20 cached), 50 out, estimated\n", "1200→34"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing:\n%s", want, b.String())
		}
	}
	raw, err := json.Marshal(shown)
	if err != nil || !strings.Contains(string(raw), `"cost_usd":0.025,`) {
		t.Errorf("%s, %v", raw, err)
	}
}
