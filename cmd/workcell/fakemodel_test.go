package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestAgentWithAVendorsPlugin runs an agent with the real OpenAI plugin against a server that speaks OpenAI's wire format:
// the first answer calls sandbox_exec, the second gives its output back. Key and address come from the environment.
func TestAgentWithAVendorsPlugin(t *testing.T) {
	t.Parallel()
	var turns atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer key-from-env" {
			t.Errorf("Authorization = %q", got)
		}
		var req struct {
			Model    string
			Messages []struct {
				Role    string
				Content any
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		if req.Model != "house-model" {
			t.Errorf("model = %q", req.Model)
		}
		message := map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{
			"id": "call_1", "type": "function",
			"function": map[string]any{"name": "sandbox_exec", "arguments": `{"cmd": ["echo", "six times seven is", "42"]}`},
		}}}
		if turns.Add(1) > 1 {
			last := req.Messages[len(req.Messages)-1]
			answer := "no"
			if text, _ := json.Marshal(last.Content); strings.Contains(string(text), "six times seven is 42") {
				answer = "The sandbox says 42."
			}
			message = map[string]any{"role": "assistant", "content": answer}
		}
		w.Header().Set("Content-Type", "application/json")
		err := json.NewEncoder(w).Encode(map[string]any{
			"id": "x", "object": "chat.completion", "model": req.Model,
			"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": message}},
			"usage":   map[string]any{"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
		})
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)

	path := filepath.Join(t.TempDir(), "asker.prompt")
	file := "---\nmodel: openai/house-model\nsandbox: {mode: code, runtime: bash}\n---\nWhat is six times seven?\n"
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := workcell(t, "agent", "run", path, "-o", "json")
	cmd.Env = append(testEnviron(t), "OPENAI_API_KEY=key-from-env", "OPENAI_BASE_URL="+server.URL+"/v1/")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var got agentOutput
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if got.Text != "The sandbox says 42." || got.Model != "openai/house-model" || got.ToolCalls != 1 || got.InputTokens != 20 {
		t.Errorf("answer = %+v", got)
	}
}
