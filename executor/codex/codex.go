// Package codex calls OpenAI's Codex CLI.
package codex

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/session"
)

// Version is the version of the CLI that the driver is written for.
const Version = "0.169.0"

// keyVariable is where the CLI finds the key of its model.
const keyVariable = "WORKCELL_MODEL_KEY"

// Driver calls Codex. Its zero value is ready for use. Task.Args may have "effort" (minimal, low, medium, high, xhigh).
type Driver struct{}

// Name returns "codex".
func (Driver) Name() string { return "codex" }

// Prepare implements executor.Driver.
func (Driver) Prepare(t executor.Task, in executor.Inside) (executor.Invocation, error) {
	model, ok := in.Models[executor.OpenAIResponses]
	if !ok {
		return executor.Invocation{}, fmt.Errorf("%w: codex requires a model with the %s API", backend.ErrUnsupported, executor.OpenAIResponses)
	}
	if t.MaxTurns > 0 {
		return executor.Invocation{}, fmt.Errorf("%w: codex cannot limit turns; use a budget or a timeout", backend.ErrUnsupported)
	}
	home := path.Join(in.Home, ".codex")
	config, err := configuration(t, in, model)
	if err != nil {
		return executor.Invocation{}, err
	}
	inv := executor.Invocation{
		Env:   map[string]string{"HOME": in.Home, "CODEX_HOME": home, keyVariable: model.Key},
		Stdin: []byte(t.Prompt),
		Files: []executor.File{{Path: path.Join(home, "config.toml"), Data: config}},
		Keep:  []string{".codex/sessions"},
	}
	argv := []string{"codex", "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-C", in.Workdir}
	if t.Model != "" {
		argv = append(argv, "-m", t.Model)
	}
	if t.Schema != nil {
		name := path.Join(in.Home, "schema.json")
		argv = append(argv, "--output-schema", name)
		inv.Files = append(inv.Files, executor.File{Path: name, Data: t.Schema})
	}
	if t.ResumeID != "" {
		argv = append(argv, "resume", t.ResumeID)
	}
	inv.Argv = append(argv, "-")
	return inv, nil
}

// configuration returns the CLI's config.toml.
func configuration(t executor.Task, in executor.Inside, model executor.Endpoint) ([]byte, error) {
	var b bytes.Buffer
	set := func(key string, value any) { fmt.Fprintf(&b, "%s = %s\n", key, toml(value)) }
	set("model_provider", "workcell")
	if t.Model != "" {
		set("model", t.Model)
	}
	set("check_for_update_on_startup", false)
	if !t.Web {
		set("web_search", "disabled")
	}
	if t.System != "" {
		set("developer_instructions", t.System)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Args)) {
		if name != "effort" || !slices.Contains([]string{"minimal", "low", "medium", "high", "xhigh"}, t.Args[name]) {
			return nil, fmt.Errorf("%w: codex has no argument %s: %q; it has effort (minimal, low, medium, high, xhigh)", backend.ErrInvalid, name, t.Args[name])
		}
		set("model_reasoning_effort", t.Args[name])
	}
	b.WriteString("\n[analytics]\n")
	set("enabled", false)
	b.WriteString("\n[feedback]\n")
	set("enabled", false)
	// What a repository configures in .codex is read where it is trusted.
	fmt.Fprintf(&b, "\n[projects.%s]\n", toml(in.Workdir))
	set("trust_level", "untrusted")
	b.WriteString("\n[model_providers.workcell]\n")
	set("name", "workcell")
	set("base_url", model.BaseURL)
	set("env_key", keyVariable)
	set("wire_api", "responses")
	set("supports_websockets", false)
	set("request_max_retries", 1)
	set("stream_max_retries", 1)
	if len(in.MCP) > 0 {
		b.WriteString("\n[mcp_servers." + executor.Server + "]\n")
		set("command", in.MCP[0])
		set("args", in.MCP[1:])
		set("required", true)
		set("default_tools_approval_mode", "approve")
		set("tool_timeout_sec", 1200) // a call of a host tool may wait for an approval
	}
	return b.Bytes(), nil
}

// toml returns a value as TOML, whose plain values are JSON but for one character.
func toml(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // plain data
	return strings.ReplaceAll(strings.TrimSpace(b.String()), "\x7f", `\u007f`)
}

// Outcome implements executor.Driver.
func (Driver) Outcome(seen executor.Seen, exit session.ExecStatus) executor.Outcome {
	return executor.Judge(seen, exit, nil)
}

// Parser implements executor.Driver.
func (Driver) Parser() executor.Parser { return &parser{} }
