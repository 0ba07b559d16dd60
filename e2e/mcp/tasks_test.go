package mcp_test

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// taskFolders returns the flags for the project's examples, with the test images.
func taskFolders(t *testing.T) []string {
	t.Helper()
	examples, err := filepath.Abs(filepath.Join("..", "..", "examples"))
	must(t, err)
	return []string{
		"--agents", filepath.Join(examples, "agents"), "--workflows", filepath.Join(examples, "workflows"),
		"--map-image", "node:20-slim=workcell/node:22", "--map-image", "debian:bookworm-slim=workcell/debian:12",
	}
}

// TestTaskWorkflow runs an example workflow with recorded model answers, follows the steps, and gets the files.
func TestTaskWorkflow(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs(filepath.Join("..", "..", "examples", "workflows", "scripts", "debug-and-fix.yaml"))
	must(t, err)
	p := startPeer(t, append(taskFolders(t), "--model", "scripted/"+script)...)
	p.initialize()
	id := p.request("tools/call", map[string]any{
		"name": "execute_task", "arguments": map[string]any{"task": "debug-and-fix", "session_id": "work"}, "_meta": map[string]any{"progressToken": 1},
	})
	r := p.outcome(id)
	if r.IsError || r.text(t, "outcome") != "succeeded" || !strings.Contains(r.text(t, "output_json"), `"all_passed":true`) {
		t.Fatalf("result %v", r.Content)
	}
	var told strings.Builder
	for _, m := range p.notes {
		told.Write(m.Params)
	}
	if len(p.notes) == 0 || !strings.Contains(told.String(), "progressToken") {
		t.Errorf("no progress: %s", told.String())
	}
	got := p.must("get_files", map[string]any{"session_id": "work", "paths": []string{"calculator.py"}})
	var files []struct {
		Path        string
		ContentsB64 string `json:"contents_b64"`
	}
	if err := json.Unmarshal(got.Structured["files"], &files); err != nil || len(files) != 1 {
		t.Fatalf("files %s: %v", got.Structured["files"], err)
	}
	source, err := base64.StdEncoding.DecodeString(files[0].ContentsB64)
	if err != nil || !strings.Contains(string(source), "CalculatorError") {
		t.Errorf("calculator.py: %v\n%s", err, source)
	}
	changed := p.must("get_files", map[string]any{"session_id": "work", "format": "patch"}).text(t, "patch")
	if !strings.HasPrefix(changed, "diff --git a/calculator.py b/calculator.py\n") || strings.Contains(changed, "new file") {
		t.Errorf("the patch of the workflow's workspace: %s", changed)
	}
	began := filepath.Join(p.state, "snapshots", "*", "*", "base.zip") // initial files of the session's sandbox
	if found, err := filepath.Glob(began); err != nil || len(found) != 1 {
		t.Errorf("in the state directory there are %v, %v", found, err)
	}
	if r := p.must("cleanup_session", map[string]any{"session_id": "work"}); string(r.Structured["removed"]) != "1" {
		t.Errorf("removed %s", r.Structured["removed"])
	}
	if found, err := filepath.Glob(began); err != nil || len(found) != 0 {
		t.Errorf("the session is closed and there are %v, %v", found, err)
	}
}

// TestTaskWithoutModel: without a model key, the error names the variables to set, and the sandbox tools still work.
func TestTaskWithoutModel(t *testing.T) {
	t.Parallel()
	p := startPeerEnv(t, []string{"GEMINI_API_KEY=", "GOOGLE_API_KEY="}, taskFolders(t)...)
	p.initialize()
	r := p.tool("execute_task", map[string]any{"task": "python-developer", "input": "print the primes"})
	if r.errorCode() != "unavailable" || !strings.Contains(string(r.Structured["error"]), "GEMINI_API_KEY") || !strings.Contains(string(r.Structured["error"]), "--model") {
		t.Errorf("error %s", r.Structured["error"])
	}
	if r := p.must("sandbox_run", map[string]any{"code": "print(6*7)"}); r.text(t, "stdout") != "42\n" {
		t.Errorf("stdout %q", r.text(t, "stdout"))
	}
}

// TestTaskInputs: an invalid input is an error for the caller to correct, and valid input is converted to the agent's
// types.
func TestTaskInputs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"calc.prompt":  "---\nmodel: googleai/gemini-2.5-flash\ninput: {schema: {n: integer, unit: string}}\n---\n{{n}}",
		"count.prompt": "---\nmodel: googleai/gemini-2.5-flash\ninput: {schema: {n: integer}}\n---\n{{n}}",
		"script.yaml":  "agents:\n  count:\n    - - {text: 'n is ${ string(input.n) }'}\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	p := startPeer(t, "--agents", dir, "--model", "scripted/"+filepath.Join(dir, "script.yaml"))
	p.initialize()
	for _, tt := range []struct {
		args map[string]any
		want string
	}{
		{map[string]any{"task": "calc", "inputs": map[string]any{"n": "ten"}}, "is not a JSON value of type integer"},
		{map[string]any{"task": "count", "input": "ten"}, "is not a JSON value of type integer"},
	} {
		r := p.tool("execute_task", tt.args)
		if text := string(r.Structured["error"]); r.errorCode() != "invalid_argument" || !strings.Contains(text, tt.want) || strings.Contains(text, dir) {
			t.Errorf("%v: error %s, want %q", tt.args, text, tt.want)
		}
	}
	if r := p.must("execute_task", map[string]any{"task": "count", "input": "10"}); r.text(t, "text") != "n is 10" {
		t.Errorf("text %q", r.text(t, "text"))
	}
}

// TestOperatorsTasks: the client sees the class of a task's failure, and the log the reason with host paths.
func TestOperatorsTasks(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "operators-own")
	must(t, os.Mkdir(dir, 0o700))
	workflow := "id: copy\nsandbox: {workspace: ./not-there}\nsteps:\n  - {id: run, type: exec, command: 'true'}\n"
	must(t, os.WriteFile(filepath.Join(dir, "copy.yaml"), []byte(workflow), 0o600))
	p := startPeer(t, "--workflows", dir)
	p.initialize()
	r := p.tool("execute_task", map[string]any{"task": "copy"})
	if text := string(r.Structured["error"]); !r.IsError || strings.Contains(text, "operators-own") {
		t.Errorf("error %s", text)
	}
	p.in.Close()
	if code := p.wait(); code != 0 || !strings.Contains(p.stderr.String(), "operators-own") {
		t.Errorf("exit code %d, standard error %q", code, p.stderr.String())
	}
}
