package examples_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// gemini is a server with the wire format of the Gemini API. It calls a tool once, and then answers.
type gemini struct {
	t            *testing.T
	tool, answer string
	args         map[string]any

	mu     sync.Mutex // guards result
	result any        // result of the tool
}

func (g *gemini) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/models/gemini-2.5-flash:generateContent") || r.Header.Get("X-Goog-Api-Key") != "key" {
		g.t.Errorf("request to %s", r.URL.Path)
	}
	var req struct {
		Contents []struct {
			Parts []struct{ FunctionResponse *struct{ Response any } }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		g.t.Error(err)
	}
	part := map[string]any{"functionCall": map[string]any{"name": g.tool, "args": g.args}}
	if last := req.Contents[len(req.Contents)-1].Parts; last[len(last)-1].FunctionResponse != nil {
		g.mu.Lock()
		g.result = last[len(last)-1].FunctionResponse.Response
		g.mu.Unlock()
		part = map[string]any{"text": g.answer}
	}
	w.Header().Set("Content-Type", "application/json")
	err := json.NewEncoder(w).Encode(map[string]any{
		"candidates": []any{map[string]any{
			"content": map[string]any{"role": "model", "parts": []any{part}}, "finishReason": "STOP",
		}},
	})
	if err != nil {
		g.t.Error(err)
	}
}

// TestAgentsWithTheirOwnModel runs the unmodified agents with a key: with their own model, its real plugin, and a
// server that replaces the vendor's server.
func TestAgentsWithTheirOwnModel(t *testing.T) {
	t.Parallel()
	echo := map[string]any{"cmd": []any{"echo", "from the sandbox"}}
	for name, g := range map[string]*gemini{
		"code-analyzer": {tool: "sandbox_exec", args: echo, answer: `{"summary": "fine", "findings": []}`},
		"code-fixer":    {tool: "sandbox_exec", args: echo, answer: `{"summary": "done", "changed_files": []}`},
		"test-runner": {
			tool: "sandbox_exec", args: echo, answer: "```json\n{\"all_passed\": true, \"tests\": 1, \"report\": \"\"}\n```",
		},
		"python-developer": {tool: "sandbox_exec", args: echo, answer: "done"},
		"node-developer":   {tool: "sandbox_exec", args: echo, answer: `{"summary": "ok", "tests_passed": true, "changed_files": []}`},
		"data-analyst": {
			tool: "sandbox_run", args: map[string]any{"code": "print('from', 'the sandbox')"}, answer: `{"answer": "42", "figures": []}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g.t = t
			server := httptest.NewServer(g)
			t.Cleanup(server.Close)
			args := append([]string{"agent", "run", "examples/agents/" + name + ".prompt", "-o", "json"}, agents()[name].args...)
			stdout, _ := workcell(t, []string{"GEMINI_API_KEY=key", "GOOGLE_GEMINI_BASE_URL=" + server.URL}, args...)
			if got := decode(t, stdout)["model"]; got != "googleai/gemini-2.5-flash" {
				t.Errorf("model = %v", got)
			}
			result, err := json.Marshal(g.result)
			if err != nil || !strings.Contains(string(result), `from the sandbox\n`) {
				t.Errorf("the tool returned %s (%v)", result, err)
			}
		})
	}
}
