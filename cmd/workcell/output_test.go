package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/workflow"
)

// TestOutput verifies that JSON keeps its order and is safe for a terminal, and that a result is readable.
func TestOutput(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	a := newCommand(nil, &b, nil, "")
	if err := oneOf(&a.out, outputTable, outputJSON).Set("json"); err != nil {
		t.Fatal(err)
	}
	v := struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
		None *int     `json:"none"`
	}{Name: "true", Tags: []string{"multi\nline", "<&>", "\u2028", "\U000e0041"}}
	if err := a.print(v, nil); err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"name\": \"true\",\n  \"tags\": [\n    \"multi\\nline\",\n    \"<&>\",\n" +
		"    \"\\u2028\",\n    \"\\udb40\\udc41\"\n  ],\n  \"none\": null\n}\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	if err := oneOf(&a.out, outputTable, outputJSON).Set("yaml"); err == nil || a.out != outputJSON {
		t.Errorf("Set(yaml) = %v, value %q", err, a.out)
	}
	b.Reset()
	result := map[string]any{"stdout": "a\nb\n", "total": 1e6, "id": "007", "odd": "\x1b[31m\x7f\u0085\u202e"}
	if err := writeLines(&b, "  ", result); err != nil {
		t.Fatal(err)
	}
	want = "  id: \"007\"\n  odd: \"\\e[31m\\x7F\\N\\u202e\"\n  stdout: |\n      a\n      b\n  total: 1000000\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestTableIsSafeForATerminal(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	err := writeTable(&b, []string{"NAME", "VALUE"}, [][]string{{"a\nb", "\x1b[2Jx"}, {"", "y"}})
	if err != nil {
		t.Fatal(err)
	}
	want := "NAME  VALUE\na\\nb  \\x1b[2Jx\n-     y\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProgressOffATerminalIsPlainLines(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	p := newProgress(nil, &b)
	p.Status("opening")
	p.Pull(backend.PullProgress{Image: "python", Status: "Pulling"})
	p.Pull(backend.PullProgress{Image: "python", Layer: "a", Status: "Downloading", Current: 1 << 20, Total: 3 << 20})
	p.Line("step \x1b[31m%s", "done\nfake line")
	p.Close()
	want := "pulling image python\nstep \\x1b[31mdone\\nfake line\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProgressOnATerminalHasALiveLine(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	now := time.Unix(0, 0)
	p := &progress{w: &b, live: true, now: func() time.Time { return now }, pulls: map[string]map[string]backend.PullProgress{}}
	p.Status("step a")
	now = now.Add(90 * time.Second)
	p.Line("a line")
	p.Pull(backend.PullProgress{Image: "python", Layer: "x", Status: "Downloading", Current: 1 << 20, Total: 3 << 20})
	p.Status("")
	const erase = "\r\x1b[K"
	want := "step a … 0s" + erase + "a line\nstep a … 1m30s" + erase + "pulling image python\nstep a … 1m30s" + erase +
		"pulling python: 1MiB of 3MiB … 1m30s" + erase
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLineLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(newLineLog(&out))
	log.Info("nobody asked")
	log.Warn("plain")
	log.With("sandbox", "sbx_1").WithGroup("g").Error("cannot", "n", 2, "error", errors.New("two\nlines \x1b[1m"))
	const want = "workcell: warning: plain\nworkcell: error: cannot (sandbox sbx_1, n 2): two\\nlines \\x1b[1m\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

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

// TestRunsShowCost: what coding agents cost is shown for each attempt, failed ones too, and for the run; nothing where it is not known.
func TestRunsShowCost(t *testing.T) {
	t.Parallel()
	ended := func(path string, cost *float64) workflow.Entry {
		return workflow.Entry{Kind: workflow.EventStepFinished, Path: path, Type: workflow.TypeAgent, Agent: "coder", Visit: 1, Attempt: 1, CostUSD: cost}
	}
	some, none := .0125, 0.0
	entries := []workflow.Entry{ended("fix", &some), ended("again", &some), ended("free", &none), ended("unknown", nil)}
	shown := shownRun{Entries: entries, CostUSD: costOf(entries)}
	var b strings.Builder
	if err := shown.table(&b, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cost      $0.0250\n", "COST", "$0.0125", "$0.0000"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing:\n%s", want, b.String())
		}
	}
	raw, err := json.Marshal(shown)
	if err != nil || !strings.Contains(string(raw), `"cost_usd":0.025,`) {
		t.Errorf("%s, %v", raw, err)
	}
	if cost := costOf(entries[3:]); cost != nil {
		t.Errorf("a cost that is not known is %v", *cost)
	}
}
