package mcp_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/llmtest"
)

// TestExecutors: a client can give two tasks to a real coding agent. The second task continues the conversation of the
// first, in the same workspace, and the budget stops a third.
func TestExecutors(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"docker", "containerd"} { // local has no images
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			tasksOfACodingAgent(t, engine)
		})
	}
}

func tasksOfACodingAgent(t *testing.T, engine string) {
	t.Helper()
	model := llmtest.New(func(_ int, r llmtest.Request) llmtest.Answer {
		switch n := len(r.Results()); {
		case n > 0 && !strings.Contains(body(t, r), "spend everything"):
			return llmtest.Answer{Text: "Written."}
		default:
			return llmtest.Answer{Calls: []llmtest.Call{{Name: "Bash", Input: llmtest.Object{"command": "date >> data.csv"}}}}
		}
	})
	web := httptest.NewServer(model)
	t.Cleanup(web.Close)
	p := startPeerEnv(t, []string{"ANTHROPIC_BASE_URL=" + web.URL, "ANTHROPIC_API_KEY=sk-operator"}, "--backend", engine, "--executors", "claude", "--budget-usd", "0.5")
	p.initialize()
	task := func(input, session string) toolResult {
		id := p.request("tools/call", map[string]any{
			"name": "execute_task", "arguments": map[string]any{"task": "claude", "input": input, "session_id": session}, "_meta": map[string]any{"progressToken": 1},
		})
		return p.outcome(id)
	}
	first := task("make data.csv", "new")
	if first.IsError || first.text(t, "text") != "Written." || first.text(t, "model") != "anthropic/claude-sonnet-4-5" || string(first.Structured["tool_calls"]) != "1" {
		t.Fatalf("first: %v", first.Content)
	}
	var cost float64
	if err := json.Unmarshal(first.Structured["cost_usd"], &cost); err != nil || cost <= 0 {
		t.Errorf("cost_usd %s: %v", first.Structured["cost_usd"], err)
	}
	session := first.text(t, "session_id")
	before := len(model.Requests())
	if second := task("and now the second line", session); second.IsError {
		t.Fatalf("second: %v", second.Content)
	}
	if asked := body(t, model.Requests()[before]); !strings.Contains(asked, "make data.csv") || !strings.Contains(asked, "and now the second line") {
		t.Errorf("the conversation of the second task: %s", asked)
	}
	if files := string(p.must("get_files", map[string]any{"session_id": session}).Structured["files"]); !strings.Contains(files, `"data.csv"`) || strings.Contains(files, ".workcell") {
		t.Errorf("files %s", files)
	}
	if third := task("spend everything", session); !third.IsError || !strings.Contains(string(third.Structured["error"]), "budget") {
		t.Errorf("third: %v", third.Content)
	}
	for _, r := range model.Requests() {
		if r.Header.Get("X-Api-Key") != "sk-operator" {
			t.Errorf("the model was asked with %v", r.Header)
		}
	}
	p.must("cleanup_session", map[string]any{"session_id": session})
}

func body(t *testing.T, r llmtest.Request) string {
	t.Helper()
	raw, err := json.Marshal(r.Body)
	must(t, err)
	return string(raw)
}
