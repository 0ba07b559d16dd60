package drivers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// codexKey is the environment variable with the model key.
const codexKey = "WORKCELL_MODEL_KEY"

// codex returns the driver for OpenAI's Codex CLI.
func codex() *Driver {
	return &Driver{
		Version: "0.171.0", name: "codex", dialect: model.OpenAIResponses, prepare: prepareCodex,
		args:   []argument{{"effort", "minimal, low, medium, high, xhigh"}},
		parser: func() executor.Parser { return jsonLines[codexLine](codexEvents) },
	}
}

func prepareCodex(t task) (executor.Invocation, error) {
	if t.MaxTurns > 0 {
		return executor.Invocation{}, fmt.Errorf("%w: codex cannot limit turns; use a budget or a timeout",
			backend.ErrUnsupported)
	}
	home := path.Join(t.Settings, ".codex")
	inv := executor.Invocation{
		Env:   map[string]string{"CODEX_HOME": home, codexKey: t.model.Key},
		Stdin: []byte(executor.WithSchema(t.Prompt, t.Schema)),
		Files: []executor.File{{Path: path.Join(home, "config.toml"), Data: codexConfig(t)}},
		Keep:  []string{".codex/sessions"},
	}
	schema := ""
	var object map[string]any
	if json.Unmarshal(t.Schema, &object) == nil && object["type"] == "object" && object["anyOf"] == nil && strict(object) {
		schema, inv.Stdin = path.Join(t.Settings, "schema.json"), []byte(t.Prompt)
		inv.Files = append(inv.Files, executor.File{Path: schema, Data: t.Schema})
	}
	inv.Argv = slices.Concat([]string{
		"codex", "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-C", t.Workdir,
	}, option("-m", t.Model), option("--output-schema", schema), option("resume", t.ResumeID), []string{"-"})
	return inv, nil
}

// unstrict are keywords that OpenAI refuses in schemas for constrained answers.
var unstrict = []string{
	"allOf", "contains", "default", "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "maxProperties",
	"minContains", "minProperties", "not", "oneOf", "patternProperties", "propertyNames", "then", "unevaluatedItems",
	"unevaluatedProperties", "uniqueItems",
}

// strict reports whether OpenAI accepts a schema for constrained answers: objects require all their properties and
// forbid others. It also refuses properties with the name of an unsupported keyword.
func strict(schema any) bool {
	switch v := schema.(type) {
	case []any:
		return !slices.ContainsFunc(v, func(item any) bool { return !strict(item) })
	case map[string]any:
		if slices.ContainsFunc(unstrict, func(key string) bool { return v[key] != nil }) {
			return false
		}
		properties, object := v["properties"].(map[string]any)
		required, _ := v["required"].([]any)
		if (object || v["type"] == "object") && (v["additionalProperties"] != false || len(required) < len(properties)) {
			return false
		}
		return strict(slices.Collect(maps.Values(v)))
	}
	return true
}

// codexConfig returns the CLI's config.toml.
func codexConfig(t task) []byte {
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
	if effort := t.Args["effort"]; effort != "" {
		set("model_reasoning_effort", effort)
	}
	b.WriteString("\n[analytics]\n")
	set("enabled", false)
	b.WriteString("\n[feedback]\n")
	set("enabled", false)
	// The CLI uses a repository's .codex configuration only if the project is trusted.
	fmt.Fprintf(&b, "\n[projects.%s]\n", toml(t.Workdir))
	set("trust_level", "untrusted")
	b.WriteString("\n[model_providers.workcell]\n")
	set("name", "workcell")
	set("base_url", t.model.BaseURL)
	set("env_key", codexKey)
	set("wire_api", "responses")
	set("supports_websockets", false)
	set("request_max_retries", 1)
	set("stream_max_retries", 1)
	if len(t.MCP) > 0 {
		b.WriteString("\n[mcp_servers." + executor.Server + "]\n")
		set("command", t.MCP[0])
		set("args", t.MCP[1:])
		set("required", true)
		set("default_tools_approval_mode", "approve")
		set("tool_timeout_sec", int(toolTime.Seconds()))
	}
	return b.Bytes()
}

// toml encodes a value as TOML. TOML encodes plain values like JSON, except for one character.
func toml(v any) string {
	b, _ := sanitize.JSON(v) // plain data, so the error is always nil
	return strings.ReplaceAll(string(b), "\x7f", `\u007f`)
}

// codexLine is an event of codex exec --json.
type codexLine struct {
	Type   string
	Thread string `json:"thread_id"`
	Item   json.RawMessage
	Usage  struct {
		Input      int64 `json:"input_tokens"`
		Cached     int64 `json:"cached_input_tokens"`
		CacheWrite int64 `json:"cache_write_input_tokens"`
		Output     int64 `json:"output_tokens"`
	}
	Message string
	Error   struct{ Message string }
}

type item struct {
	ID, Type, Text, Message, Status string

	// For mcp_tool_call.
	Server, Tool string
	Arguments    json.RawMessage
	Result       *struct {
		Content []struct{ Type, Text string }
	}
	Error *struct{ Message string }

	// For command_execution.
	Command string
	Output  string `json:"aggregated_output"`

	// For file_change and web_search.
	Changes json.RawMessage
	Query   string
}

func codexEvents(l codexLine) []executor.Event {
	switch l.Type {
	case "thread.started":
		return []executor.Event{{Kind: executor.KindSession, Session: l.Thread}}
	case "item.started", "item.completed":
		return codexItem(l)
	case "turn.completed":
		// The input includes the cached tokens.
		u := executor.Usage{
			Input: max(0, l.Usage.Input-l.Usage.Cached), Output: l.Usage.Output,
			CacheRead: l.Usage.Cached, CacheWrite: l.Usage.CacheWrite, Whole: true,
		}
		return []executor.Event{{Kind: executor.KindUsage, Usage: &u}, ended(executor.End{Outcome: executor.Completed})}
	case "turn.failed":
		return []executor.Event{ended(executor.End{Outcome: codexFailure(l.Error.Message), Detail: l.Error.Message})}
	case "error":
		return text(executor.KindNotice, l.Message)
	}
	return nil
}

// codexFailure returns the outcome of a failed turn. The message contains the HTTP status of the response.
func codexFailure(message string) executor.Outcome {
	if strings.Contains(message, "401 Unauthorized") || strings.Contains(message, "403 Forbidden") {
		return executor.AuthError
	}
	return executor.ModelError
}

// codexItem returns the events of an item. It returns nil for kinds without events.
func codexItem(l codexLine) []executor.Event {
	var it item
	if json.Unmarshal(l.Item, &it) != nil {
		return nil
	}
	done := l.Type == "item.completed"
	switch {
	case it.Type == "agent_message" && done:
		return text(executor.KindText, it.Text)
	case it.Type == "reasoning" && done:
		return text(executor.KindThinking, it.Text)
	case it.Type == "error":
		return text(executor.KindNotice, it.Message)
	case it.Type == "mcp_tool_call", it.Type == "command_execution", it.Type == "file_change", it.Type == "web_search":
		return []executor.Event{codexTool(it, done)}
	}
	return nil
}

// codexTool returns the start or the end event of a tool.
func codexTool(it item, done bool) executor.Event {
	if done {
		output := it.Output
		if it.Result != nil {
			for _, c := range it.Result.Content {
				if len(output) <= executor.MaxToolText { // longer output is truncated later
					output += c.Text
				}
			}
		}
		if it.Error != nil {
			output += it.Error.Message
		}
		e := toolEnd(it.ID, output, it.Status == "failed" || it.Error != nil)
		e.Tool.Server, e.Tool.Name = it.Server, cmp.Or(it.Tool, it.Type)
		return e
	}
	var input any
	switch it.Type {
	case "mcp_tool_call":
		input = it.Arguments
	case "command_execution":
		input = map[string]string{"command": it.Command}
	case "file_change":
		input = map[string]json.RawMessage{"changes": it.Changes}
	case "web_search":
		input = map[string]string{"query": it.Query}
	}
	raw, _ := json.Marshal(input) // invalid JSON is omitted from the event
	return toolStart(it.ID, it.Server, cmp.Or(it.Tool, it.Type), raw)
}
