package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestOutput verifies that JSON keeps its order and is safe for a terminal, and a result is readable.
func TestOutput(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	a := New(nil, &b, nil, "")
	checktest.Must(t, OneOf(&a.Out, OutputTable, outputJSON).Set("json"))
	v := struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
		None *int     `json:"none"`
	}{Name: "true", Tags: []string{"multi\nline", "<&>", "\u2028", "\U000e0041"}}
	checktest.Must(t, a.Print(v, nil))
	want := "{\n  \"name\": \"true\",\n  \"tags\": [\n    \"multi\\nline\",\n    \"<&>\",\n" +
		"    \"\\u2028\",\n    \"\\udb40\\udc41\"\n  ],\n  \"none\": null\n}\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	if err := OneOf(&a.Out, OutputTable, outputJSON).Set("yaml"); err == nil || a.Out != outputJSON {
		t.Errorf("Set(yaml) = %v, value %q", err, a.Out)
	}
	b.Reset()
	result := map[string]any{"stdout": "a\nb\n", "total": 1e6, "id": "007", "odd": "\x1b[31m\x7f\u0085\u202e"}
	checktest.Must(t, WriteLines(&b, "  ", result))
	want = "  id: \"007\"\n  odd: \"\\e[31m\\x7F\\N\\u202e\"\n  stdout: |\n      a\n      b\n  total: 1000000\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestTableIsSafeForATerminal(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	err := WriteTable(&b, []string{"NAME", "VALUE"}, [][]string{{"a\nb", "\x1b[2Jx"}, {"", "y"}})
	checktest.Must(t, err)
	want := "NAME  VALUE\na\\nb  \\x1b[2Jx\n-     y\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProgressOffATerminalIsPlainLines(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	p := newProgress(nil, &b, false)
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
	now = now.Add(5 * time.Second)
	p.Line("another")
	p.Status("")
	const erase = "\r\x1b[K"
	want := "step a … 0s" + erase + "a line\nstep a … 1m30s" + erase + "pulling image python\nstep a … 1m30s" + erase +
		"pulling python: 1MiB of 3MiB … 1m30s" + erase + "another\nstep a … 1m35s" + erase
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
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
		if diff := cmp.Diff(test.want, LastWords(test.output)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
