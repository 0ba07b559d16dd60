package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/workflow"
)

func TestLastWords(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		output any
		want   []string
	}{
		"standard error":  {map[string]any{"stderr": "a\r\nb\n\n", "stdout": "c"}, []string{"a", "b"}},
		"standard output": {map[string]any{"stderr": " \n", "stdout": "c\n"}, []string{"c"}},
		"much":            {map[string]any{"stderr": strings.Repeat("x\n", 50) + "y"}, append(strings.Split(strings.Repeat("x", 9), ""), "y")},
		"wide":            {map[string]any{"stderr": strings.Repeat("é", 300)}, []string{strings.Repeat("é", 199) + "…"}},
		"nothing":         {map[string]any{"stderr": "", "stdout": ""}, nil},
		"no command":      {"text", nil},
		"no output":       {nil, nil},
	} {
		if diff := cmp.Diff(test.want, lastWords(test.output)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// TestRunsShowWholeError: what the table cut of an error stands under it.
func TestRunsShowWholeError(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("why it failed ", 12) + "at the end\nand a second line"
	entry := workflow.Entry{Kind: workflow.EventStepFinished, Path: "ask", Type: workflow.TypeAgent, Agent: "coder", Visit: 1, Attempt: 2, Status: workflow.StatusFailed}
	for message, want := range map[string]string{"short": "", long: "\nask, attempt 2:\n  why it failed "} {
		entry.Error = &workflow.Error{Code: workflow.CodeAgent, Message: message}
		var b strings.Builder
		if err := (shownRun{Entries: []workflow.Entry{entry}}).table(&b, time.Now()); err != nil {
			t.Fatal(err)
		}
		got := b.String()
		if want == "" && strings.Contains(got, "attempt 2:") || !strings.Contains(got, want) {
			t.Errorf("%s", got)
		}
		if want != "" && !strings.HasSuffix(got, " at the end\n  and a second line\n") {
			t.Errorf("the end is missing: %s", got)
		}
	}
}
