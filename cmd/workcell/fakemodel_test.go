package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli/runcmd"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

// TestAgentWithAVendorsPlugin verifies an agent with the real OpenAI plugin and a server with OpenAI's wire format. The
// first answer calls sandbox_exec, and the second returns the output. Key and address come from the environment.
func TestAgentWithAVendorsPlugin(t *testing.T) {
	t.Parallel()
	mock := llmtest.New(func(n int, r llmtest.Request) llmtest.Answer {
		if got := r.Header.Get("Authorization"); got != "Bearer key-from-env" || r.Model != "house-model" || r.Dialect != "openai-chat" {
			t.Errorf("Authorization = %q, model = %q, %s", got, r.Model, r.Dialect)
		}
		if n == 0 {
			return llmtest.Answer{Calls: []llmtest.Call{{Name: "sandbox_exec", Input: llmtest.Object{"cmd": []string{"echo", "six times seven is", "42"}}}}}
		}
		if results := r.Results(); len(results) == 1 && strings.Contains(results[0], "six times seven is 42") {
			return llmtest.Answer{Text: "The sandbox says 42."}
		}
		return llmtest.Answer{Text: "no"}
	})
	server := httptest.NewServer(mock)
	t.Cleanup(server.Close)

	path := filepath.Join(t.TempDir(), "asker.prompt")
	file := "---\nmodel: openai/house-model\nsandbox: {mode: code, runtime: bash}\n---\nWhat is six times seven?\n"
	checktest.Must(t, os.WriteFile(path, []byte(file), 0o600))
	cmd := workcell(t, "agent", "run", path, "-o", "json")
	cmd.Env = append(testEnviron(t), "OPENAI_API_KEY=key-from-env", "OPENAI_BASE_URL="+server.URL+"/v1/")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var got runcmd.AgentOutput
	checktest.Must(t, json.Unmarshal(out, &got))
	if got.Text != "The sandbox says 42." || got.Model != "openai/house-model" || got.ToolCalls != 1 || int64(got.InputTokens) != mock.Used().Input {
		t.Errorf("answer = %+v", got)
	}
}

// TestErrorsHaveNoKey verifies that a key quoted by a provider does not appear in any error, output, or record of a
// run.
func TestErrorsHaveNoKey(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, `{"error": {"message": "invalid: `+r.Header.Get("Authorization")+`"}}`, http.StatusBadRequest)
	}))
	t.Cleanup(server.Close)
	path, state := filepath.Join(t.TempDir(), "asker.prompt"), t.TempDir()
	flow := filepath.Join(filepath.Dir(path), "flow.yaml")
	if err := errors.Join(os.WriteFile(path, []byte("---\nmodel: openai/m\n---\nHi\n"), 0o600),
		os.WriteFile(flow, []byte("id: f\nsteps: [{id: a, type: agent, agent: asker}]\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd := workcell(t, "run", flow, "-o", "json", "--state-dir", state)
	cmd.Env = append(testEnviron(t), "OPENAI_API_KEY=key-of-the-operator", "OPENAI_BASE_URL="+server.URL+"/v1/")
	out, err := cmd.CombinedOutput()
	if text := string(out); err == nil || !strings.Contains(text, "[key]") || strings.Contains(text, "key-of-the") {
		t.Errorf("%v\n%s", err, text)
	}
	err = filepath.WalkDir(state, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var data []byte
			if data, err = os.ReadFile(file); strings.Contains(string(data), "key-of-the") {
				t.Errorf("%s has the key", file)
			}
		}
		return err
	})
	checktest.Must(t, err)
}
