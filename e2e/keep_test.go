package e2e

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

// TestContainerPerRequest: with keep: workspace, a coding agent has a new container in each of two runs, and none in
// between. The workspace and the conversation are kept.
func TestContainerPerRequest(t *testing.T) {
	t.Parallel()
	bin, dir := buildCLI(t), t.TempDir()
	model := llmtest.New(func(_ int, r llmtest.Request) llmtest.Answer {
		raw, err := json.Marshal(r.Body["messages"])
		results, tasks := r.Results(), 1
		if err == nil && strings.Contains(string(raw), "the second task") {
			tasks = 2
		}
		if len(results) >= tasks { // one command per task
			return llmtest.Answer{Text: results[len(results)-1]}
		}
		// The start time of PID 1 identifies a container.
		return llmtest.Answer{Calls: []llmtest.Call{{Name: "Bash", Input: llmtest.Object{"command": "cut -d' ' -f22 /proc/1/stat >> starts; cat starts"}}}}
	})
	web := httptest.NewServer(model)
	t.Cleanup(web.Close)
	agent := filepath.Join(dir, "coder.prompt")
	if err := os.WriteFile(agent, []byte(`---
model: anthropic/claude-sonnet-4-5
input: {schema: {task: string}}
sandbox: {mode: executor, session: user, keep: workspace, executor: {command: claude, resume: session}}
---
{{task}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, engine := range []string{"docker", "containerd"} { // local has no images
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			env := []string{"WORKCELL_STATE_DIR=" + filepath.Join(dir, engine), "ANTHROPIC_BASE_URL=" + web.URL, "ANTHROPIC_API_KEY=x"}
			var ids []string
			for n, task := range []string{"the first task", "the second task"} {
				var res struct {
					Text     string
					Executor struct{ Resumed bool }
				}
				decode(t, runCLI(t, bin, env, "agent", "run", "--backend", engine, "--user", "ann", "-o", "json", agent, task), &res)
				text, _, _ := strings.Cut(res.Text, "<") // followed by the coding agent's own text
				if starts := strings.Fields(text); len(starts) != n+1 || len(slices.Compact(starts)) != n+1 || res.Executor.Resumed != (n == 1) {
					t.Errorf("%s: %+v", task, res)
				}
				var list []struct {
					ID       string `json:"id"`
					EngineID string `json:"engine_id"`
				}
				decode(t, runCLI(t, bin, env, "sandbox", "ls", "--backend", engine, "-o", "json"), &list)
				if len(list) != 1 || list[0].EngineID != "" {
					t.Fatalf("after %s there are %+v", task, list)
				}
				ids = append(ids, list[0].ID)
			}
			if ids[0] != ids[1] {
				t.Errorf("sandboxes %v", ids)
			}
			if out := runCLI(t, bin, env, "sandbox", "rm", "--all", "--backend", engine); out.Code != 0 {
				t.Errorf("%+v", out)
			}
		})
	}
}

// decode decodes the JSON output of a command.
func decode(t *testing.T, out rig.Result, v any) {
	t.Helper()
	if out.Code != 0 {
		t.Fatalf("exit code %d: %s", out.Code, out.Stderr)
	}
	if err := json.Unmarshal([]byte(out.Stdout), v); err != nil {
		t.Fatalf("%v: %s", err, out.Stdout)
	}
}
