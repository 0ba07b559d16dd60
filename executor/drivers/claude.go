package drivers

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/gateway/model"
)

// maxArgument is the maximum length of an argument on Linux, minus a reserve.
const maxArgument = 120 << 10

// claude returns the driver for Claude Code. If the argument "bare" is "true", the CLI adds nothing itself, such as
// skills and CLAUDE.md.
func claude() *Driver {
	return &Driver{
		Version: "2.1.332", name: "claude", dialect: model.Anthropic, prepare: prepareClaude,
		args:   []argument{{"effort", "low, medium, high, xhigh, max"}, {"bare", "true, false"}},
		parser: func() executor.Parser { return jsonLines[claudeLine]((&claudeParser{}).events) },
	}
}

func prepareClaude(t task) (executor.Invocation, error) {
	inv := executor.Invocation{
		Stdin: []byte(t.Prompt), Keep: []string{".claude/projects"}, Home: t.Settings,
		// Meta gives the ACP adapter the settings of the flags below.
		Meta: map[string]any{
			"systemPrompt": map[string]any{"append": t.System},
			"claudeCode": map[string]any{
				"options": map[string]any{"settingSources": []string{"user"}, "strictMcpConfig": true},
			},
		},
	}
	mcp := path.Join(t.Settings, "mcp.json")
	argv := slices.Concat([]string{
		"claude", "-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages",
		"--dangerously-skip-permissions", "--strict-mcp-config", "--mcp-config", mcp, "--setting-sources", "user",
	}, t.session(), option("--model", t.Model))
	servers := map[string]any{}
	if len(t.MCP) > 0 {
		servers[executor.Server] = map[string]any{"command": t.MCP[0], "args": t.MCP[1:]}
	}
	config, _ := json.Marshal(map[string]any{"mcpServers": servers}) // plain data, so the error is always nil
	inv.Files = append(inv.Files, executor.File{Path: mcp, Data: config})
	if t.MaxTurns > 0 {
		argv = append(argv, "--max-turns", strconv.Itoa(t.MaxTurns))
	}
	if len(t.Schema) > maxArgument {
		return executor.Invocation{}, fmt.Errorf("%w: the schema limit of claude is %d bytes, this one has %d",
			backend.ErrTooLarge, maxArgument, len(t.Schema))
	}
	argv = append(argv, option("--json-schema", string(t.Schema))...)
	if t.System != "" {
		name := path.Join(t.Settings, "system.md")
		argv = append(argv, "--append-system-prompt-file", name)
		inv.Files = append(inv.Files, executor.File{Path: name, Data: []byte(t.System)})
	}
	if !t.Web {
		argv = append(argv, "--disallowedTools", "WebSearch,WebFetch")
	}
	if t.Args["bare"] == "true" {
		argv = append(argv, "--bare")
	}
	inv.Argv = append(argv, option("--effort", t.Args["effort"])...)
	inv.Env = claudeEnv(t)
	return inv, nil
}

func claudeEnv(t task) map[string]string {
	env := map[string]string{
		"CLAUDE_CONFIG_DIR":  path.Join(t.Settings, ".claude"),
		"ANTHROPIC_BASE_URL": t.model.BaseURL, "ANTHROPIC_API_KEY": t.model.Key,
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
		"CLAUDE_CODE_MAX_RETRIES": "2", "ENABLE_TOOL_SEARCH": "false",
		"MCP_TOOL_TIMEOUT": strconv.FormatInt(toolTime.Milliseconds(), 10),
	}
	if t.Root {
		env["IS_SANDBOX"] = "1" // otherwise it refuses to run as root without asking
	}
	if t.Model != "" { // also for requests to a smaller model, which the lease may not allow
		env["ANTHROPIC_DEFAULT_HAIKU_MODEL"], env["ANTHROPIC_SMALL_FAST_MODEL"] = t.Model, t.Model
		env["ANTHROPIC_MODEL"] = t.Model
	}
	return env
}

// claudeTool splits the name of a tool. Tools of an MCP server have names such as "mcp__SERVER__TOOL".
func claudeTool(name string) (server, tool string) {
	if rest, ok := strings.CutPrefix(name, "mcp__"); ok {
		if server, tool, ok = strings.Cut(rest, "__"); ok {
			return server, tool
		}
	}
	return "", name
}

// claudeParser parses stream-json with partial messages: deltas, and then each complete block.
type claudeParser struct {
	began    bool // the latest delta belongs to an unfinished block
	streamed bool // the text of this message arrived as deltas
	failed   bool // the latest message is the CLI's own message about a missing answer
}

type claudeLine struct {
	Type    string
	Subtype string
	Session string `json:"session_id"`
	Parent  string `json:"parent_tool_use_id"` // set in messages of sub-agents
	Event   streamEvent
	Message struct{ Content json.RawMessage }
	Failure bool `json:"is_api_error_message"` // the message is the CLI's own message about a missing answer

	IsError        bool `json:"is_error"`
	Result         string
	Structured     json.RawMessage `json:"structured_output"`
	Errors         []string
	NumTurns       int                   `json:"num_turns"`
	StopReason     string                `json:"stop_reason"`
	APIErrorStatus int                   `json:"api_error_status"`
	ModelUsage     map[string]modelUsage `json:"modelUsage"`
}

type streamEvent struct {
	Type  string
	Delta struct{ Type, Text, Thinking string }
}

type modelUsage struct {
	InputTokens, OutputTokens, CacheReadInputTokens, CacheCreationInputTokens int64
}

type block struct {
	Type, Text, ID, Name string
	Input                json.RawMessage
	ToolUseID            string `json:"tool_use_id"`
	Content              json.RawMessage
	IsError              bool `json:"is_error"`
}

func (p *claudeParser) events(l claudeLine) []executor.Event {
	switch {
	case l.Type == "system" && l.Subtype == "init":
		return []executor.Event{{Kind: executor.KindSession, Session: l.Session}}
	case l.Type == "stream_event" && l.Parent == "":
		return p.delta(l.Event)
	case l.Type == "assistant":
		return p.message(l)
	case l.Type == "user":
		return claudeResults(l)
	case l.Type == "result":
		return []executor.Event{claudeUsage(l), claudeEnd(l, p.failed)}
	}
	return nil
}

// delta returns a part of a text block.
func (p *claudeParser) delta(e streamEvent) []executor.Event {
	switch e.Type {
	case "message_start":
		p.streamed = false
	case "content_block_start":
		p.began = false
	case "content_block_delta":
		began := p.began
		p.began = true
		switch e.Delta.Type {
		case "text_delta":
			p.streamed = true
			return []executor.Event{{Kind: executor.KindText, Text: e.Delta.Text, Delta: began}}
		case "thinking_delta":
			return []executor.Event{{Kind: executor.KindThinking, Text: e.Delta.Thinking, Delta: began}}
		}
	}
	return nil
}

// message returns the tool calls of a message. It returns the text too, unless the text arrived as deltas. Text of a
// sub-agent is not an answer.
func (p *claudeParser) message(l claudeLine) []executor.Event {
	var events []executor.Event
	p.failed = l.Failure
	for _, b := range blocks(l.Message.Content) {
		switch {
		case b.Type == "text" && l.Failure:
			events = append(events, text(executor.KindNotice, b.Text)...)
		case b.Type == "text" && l.Parent == "" && !p.streamed:
			events = append(events, text(executor.KindText, b.Text)...)
		case b.Type == "tool_use":
			server, name := claudeTool(b.Name)
			events = append(events, toolStart(b.ID, server, name, b.Input))
		}
	}
	return events
}

// claudeResults returns the tool ends in a user message.
func claudeResults(l claudeLine) []executor.Event {
	var events []executor.Event
	for _, b := range blocks(l.Message.Content) {
		if b.Type == "tool_result" {
			events = append(events, toolEnd(b.ToolUseID, plain(b.Content), b.IsError))
		}
	}
	return events
}

// blocks returns the blocks of a message. It returns nil for a text message.
func blocks(raw json.RawMessage) []block {
	var list []block
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	return list
}

// plain returns the text of a result, which is a text or a list of blocks.
func plain(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	for _, b := range blocks(raw) {
		if b.Type == "text" && len(s) <= executor.MaxToolText {
			s += b.Text
		}
	}
	return s
}

// claudeUsage returns the usage of all models in the session, including earlier invocations.
func claudeUsage(l claudeLine) executor.Event {
	u := executor.Usage{Whole: true}
	for _, m := range l.ModelUsage {
		u.Input += m.InputTokens
		u.Output += m.OutputTokens
		u.CacheRead += m.CacheReadInputTokens
		u.CacheWrite += m.CacheCreationInputTokens
	}
	return executor.Event{Kind: executor.KindUsage, Usage: &u}
}

// claudeEnd returns the result reported by the CLI. failed reports whether the model's last answer is missing.
func claudeEnd(l claudeLine, failed bool) executor.Event {
	e := executor.End{Outcome: executor.Completed, Data: l.Structured, Turns: l.NumTurns}
	switch {
	case l.Subtype == "error_max_turns":
		e.Outcome = executor.MaxTurns
	case l.Subtype == "error_max_budget_usd":
		e.Outcome = executor.Budget
	case l.StopReason == "refusal":
		e.Outcome = executor.Refused
	case l.APIErrorStatus == 401 || l.APIErrorStatus == 403:
		e.Outcome = executor.AuthError
	case l.IsError && (l.APIErrorStatus != 0 || failed):
		e.Outcome = executor.ModelError
	case l.IsError || l.Subtype != "success":
		e.Outcome = executor.Crashed
	}
	if e.Outcome == executor.Completed {
		e.Text = l.Result
		return ended(e)
	}
	e.Detail = executor.CutText(strings.Join(append([]string{l.Result}, l.Errors...), "\n"))
	return ended(e)
}
