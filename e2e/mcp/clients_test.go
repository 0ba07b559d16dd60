package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/npmtest"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

// clientTime is the maximum duration of one run of a client from npm.
const clientTime = 10 * time.Minute

// runClient runs a program with a new home directory.
func runClient(t *testing.T, dir string, env []string, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	home := t.TempDir()
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir, "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home, "XDG_STATE_HOME="+home, "XDG_CACHE_HOME="+home, "TMPDIR="+t.TempDir(),
		"NO_COLOR=1", "CI=1", "WORKCELL_BACKEND=docker", "OTEL_SDK_DISABLED=true")
	cmd.Env = append(cmd.Env, env...)
	cmd.WaitDelay = time.Minute
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// TestConformance runs the official suite for both protocol generations. testdata lists the allowed failures with their
// reasons. An entry that no longer fails is an error too.
func TestConformance(t *testing.T) {
	t.Parallel()
	node, modules := npmtest.Tools(t)
	s := startHTTP(t, "--max-rate", "10000")
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			expected, err := filepath.Abs(filepath.Join("testdata", "expected-"+revision+".yaml"))
			must(t, err)
			out, stderr, err := runClient(t, t.TempDir(), nil, node, filepath.Join(modules, "@modelcontextprotocol", "conformance", "dist", "index.js"),
				"server", "--url", s.url(), "--requirements", revision, "--expected-failures", expected, "--timeout", "120000", "-o", t.TempDir())
			if err != nil {
				_, summary, _ := strings.Cut(out, "=== SUMMARY ===")
				t.Errorf("%v\n%s\n%s", err, summary, stderr)
			}
		})
	}
}

// TestInspector lists and calls tools with the Inspector's command line, on both transports. --strict checks the
// schemas for all hosts.
func TestInspector(t *testing.T) {
	t.Parallel()
	node, modules := npmtest.Tools(t)
	inspector := filepath.Join(modules, "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
	state := t.TempDir()
	t.Cleanup(func() {
		if left := containers(t, instance(t, state)); left != "" {
			t.Errorf("sandboxes are left: %s", left)
		}
	})
	s := startHTTP(t, "--token-file", tokenFile(t, "alice "+aliceToken))
	targets := map[string][]string{
		// The Inspector passes on hardly any environment variables.
		"stdio": {"env", "WORKCELL_REAPER=off", binary, "mcp", "--state-dir", state, pythonMap},
		"http":  {s.url(), "--transport", "http", "--header", "Authorization: Bearer " + aliceToken},
	}
	for name, target := range targets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inspect := func(args ...string) string {
				out, stderr, err := runClient(t, t.TempDir(), nil, node, append(append([]string{inspector, "--cli"}, target...), args...)...)
				if err != nil {
					t.Fatalf("inspector %s: %v\n%s\n%s", strings.Join(args, " "), err, out, stderr)
				}
				return out
			}
			var list struct {
				Tools []struct {
					Name         string
					OutputSchema json.RawMessage
					Annotations  *struct{ ReadOnlyHint, DestructiveHint *bool }
				}
			}
			must(t, json.Unmarshal([]byte(inspect("--method", "tools/list", "--strict")), &list))
			if len(list.Tools) != 19 { // execute_task is missing, because there are no tasks
				t.Errorf("%d tools", len(list.Tools))
			}
			for _, tool := range list.Tools {
				if tool.OutputSchema == nil || tool.Annotations == nil || tool.Annotations.ReadOnlyHint == nil || tool.Annotations.DestructiveHint == nil {
					t.Errorf("%s lacks an output schema or annotations", tool.Name)
				}
			}
			out := inspect("--method", "tools/call", "--tool-name", "sandbox_run", "--tool-arg", "code=print(6*7)")
			if !strings.Contains(out, `"stdout": "42\n"`) {
				t.Errorf("sandbox_run: %s", out)
			}
			inspect("--method", "resources/list")
			if out := inspect("--method", "resources/templates/list"); !strings.Contains(out, "sandbox://{sandbox_id}/{+path}") {
				t.Errorf("templates: %s", out)
			}
		})
	}
}

// calling returns a model that calls the tool whose name ends with tool, and then answers.
func calling(tool string, args any) *llmtest.Server {
	return llmtest.New(func(_ int, r llmtest.Request) llmtest.Answer {
		if len(r.Results()) == 0 {
			for name := range r.Tools() {
				if strings.HasSuffix(name, tool) {
					return llmtest.Answer{Calls: []llmtest.Call{{Name: name, Input: args}}}
				}
			}
		}
		return llmtest.Answer{Text: "that is all"}
	})
}

// TestCodingAgent: a real coding agent finds the server in the configuration, offers the tools to a model, and calls a
// tool.
func TestCodingAgent(t *testing.T) {
	t.Parallel()
	_, modules := npmtest.Tools(t)
	agent := npmtest.OpenCode(t, modules)
	model := calling("sandbox_exec", llmtest.Object{"command": "echo the answer is $((6*7)); id -u"})
	server := httptest.NewServer(model)
	t.Cleanup(server.Close)
	state, project := t.TempDir(), t.TempDir()
	config, err := json.Marshal(map[string]any{
		"model": "fake/m", "small_model": "fake/m", "share": "disabled", "autoupdate": false,
		"provider": map[string]any{"fake": map[string]any{
			"npm": "@ai-sdk/openai-compatible", "name": "Fake", "options": map[string]any{"baseURL": server.URL + "/v1", "apiKey": "none"},
			"models": map[string]any{"m": map[string]any{"name": "m"}},
		}},
		"mcp": map[string]any{"workcell": map[string]any{
			"type": "local", "enabled": true, "command": []string{binary, "mcp", "--state-dir", state, pythonMap},
		}},
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(project, "opencode.json"), config, 0o600))
	env := []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1"}
	out, stderr, err := runClient(t, project, env, agent, "mcp", "list")
	if err != nil || !strings.Contains(out+stderr, "workcell") || !strings.Contains(out+stderr, "connected") {
		t.Fatalf("mcp list: %v\n%s\n%s", err, out, stderr)
	}
	out, stderr, err = runClient(t, project, env, agent, "run", "compute six times seven")
	if err != nil {
		t.Fatalf("run: %v\n%s\n%s", err, out, stderr)
	}
	var offered, results []string
	for _, r := range model.Requests() {
		offered = slices.AppendSeq(offered, maps.Keys(r.Tools()))
		results = append(results, r.Results()...)
	}
	for _, tool := range []string{"sandbox_run", "sandbox_open", "sandbox_fs_write", "get_files", "session_status"} {
		if !slices.Contains(offered, "workcell_"+tool) {
			t.Errorf("%s was not offered: %q", tool, offered)
		}
	}
	if len(results) == 0 || !strings.Contains(results[0], `the answer is 42\n1000`) {
		t.Errorf("results of the tool: %q\n%s\n%s", results, out, stderr)
	}
	if left := containers(t, instance(t, state)); left != "" {
		t.Errorf("sandboxes are left: %s", left)
	}
}
