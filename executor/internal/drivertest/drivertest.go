// Package drivertest contains shared tests of all drivers. It compares prepared invocations and the parsed output of
// real CLIs with golden files. It also fuzzes the parsers, starting with the recordings. The suite in e2e/executor
// creates recordings with -record.
package drivertest

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/sandbox"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with a golden file.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// Inside returns the sandbox description for tests.
func Inside() executor.Inside {
	const addr = "http://127.0.0.1:4000"
	return executor.Inside{
		Settings: "/workspace/.workcell/agents/agent", Workdir: "/workspace", MCP: []string{"/.workcell/workcell-guest", "mcp"},
		Models: map[model.Dialect]executor.Endpoint{
			model.Anthropic: {BaseURL: addr + "/anthropic", Key: "wc-key"}, model.Gemini: {BaseURL: addr + "/gemini", Key: "wc-key"},
			model.OpenAIResponses: {BaseURL: addr + "/openai/v1", Key: "wc-key"}, model.OpenAIChat: {BaseURL: addr + "/openai/v1", Key: "wc-key"},
		},
	}
}

// Tasks returns a minimal task and a task with many fields.
func Tasks(model string, maxTurns int, args map[string]string) map[string]executor.Task {
	const id = "6f3c1c5e-58f4-4f39-9d65-2b1f4a2f1d11"
	return map[string]executor.Task{
		"plain": {Prompt: "-rf", Model: model, NewID: id},
		"full": {
			Prompt: "Say \"hi\".\n\x7f", System: "You are \"terse\".\n\\ \x7f <&>", Model: model, Schema: json.RawMessage(`{"type":"object","additionalProperties":false}`),
			MaxTurns: maxTurns, ResumeID: "ses_1", NewID: id, Web: true, Args: args,
		},
	}
}

// Prepared compares the invocations for tasks with golden files in dir.
func Prepared(t *testing.T, dir string, d executor.Driver, version string, tasks map[string]executor.Task) {
	t.Helper()
	for name, task := range tasks {
		in := Inside()
		if name == "plain" {
			in.MCP, in.Root = nil, true
		}
		inv, err := d.Prepare(task, in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		type file struct{ Path, Data string }
		shown := struct {
			Version          string
			Argv             []string
			Env              map[string]string
			Stdin            string
			Files            []file
			Keep             []string
			Late, CountTurns bool
		}{version, inv.Argv, inv.Env, string(inv.Stdin), nil, inv.Keep, inv.Late, inv.CountTurns}
		for _, f := range inv.Files {
			shown.Files = append(shown.Files, file{f.Path, string(f.Data)})
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(shown); err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join(dir, "prepare-"+name+".json"), b.Bytes())
	}
}

// Recorded parses each recording in dir. It compares the events with a golden file, and the outcome with want. exit has
// the exit codes of the CLI. Recordings without an entry in exit have exit code zero.
func Recorded(t *testing.T, dir string, d executor.Driver, want map[string]executor.Outcome, exit map[string]int) {
	t.Helper()
	for name, outcome := range want {
		events, seen := parse(d, read(t, filepath.Join(dir, name+".jsonl")))
		var b bytes.Buffer
		for _, e := range events {
			if e.Kind == executor.KindRaw {
				e.Raw = nil
			}
			line, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(append(line, '\n'))
		}
		golden(t, filepath.Join(dir, name+".events"), b.Bytes())
		status := sandbox.ExecStatus{Status: sandbox.ExecCompleted, ExitCode: exit[name]}
		if got := d.Outcome(seen, status); got != outcome {
			t.Errorf("%s: %s, want %s", name, got, outcome)
		}
	}
	for _, file := range recordings(t, dir) {
		if name := strings.TrimSuffix(filepath.Base(file), ".jsonl"); want[name] == "" {
			t.Errorf("%s has no outcome", file)
		}
	}
}

func recordings(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	return files
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parse returns the events of an output, and the summary that Run creates from them for a driver.
func parse(d executor.Driver, output []byte) (events []executor.Event, seen executor.Seen) {
	p := d.Parser()
	for line := range bytes.Lines(output) {
		for _, e := range p.Line(bytes.TrimSuffix(line, []byte("\n"))) {
			events = append(events, e)
			if e.Kind != executor.KindRaw {
				seen.Events++
			}
			if e.Kind == executor.KindEnd {
				seen.End = e.End
			}
		}
	}
	return events, seen
}

// Fuzz passes arbitrary lines to a parser. Each line must return an event, and every event must be encodable as JSON
// within its limits.
func Fuzz(f *testing.F, dir string, d executor.Driver) {
	f.Helper()
	for _, file := range recordings(f, dir) {
		f.Add(read(f, file))
	}
	f.Fuzz(func(t *testing.T, output []byte) {
		events, _ := parse(d, output)
		if len(events) == 0 && len(output) > 0 {
			t.Error("a line without an event")
		}
		for _, e := range events {
			if _, err := json.Marshal(e); err != nil {
				t.Errorf("%+v: %v", e, err)
			}
			if e.Tool != nil && (len(e.Tool.Input) > executor.MaxToolText || len(e.Tool.Output) > executor.MaxToolText) {
				t.Errorf("%d bytes of input, %d of output", len(e.Tool.Input), len(e.Tool.Output))
			}
			if len(e.Raw) > 7*executor.MaxToolText {
				t.Errorf("%d bytes raw", len(e.Raw))
			}
			switch e.Kind {
			case executor.KindEnd:
				if e.End == nil || e.End.Outcome == "" {
					t.Errorf("%+v", e)
				}
			case executor.KindUsage:
				if e.Usage == nil {
					t.Errorf("%+v", e)
				}
			case executor.KindToolStart, executor.KindToolEnd:
				if e.Tool == nil {
					t.Errorf("%+v", e)
				}
			}
		}
	})
}
