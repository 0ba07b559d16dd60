package drivers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/executor"
)

// Error codes of JSON-RPC and of the protocol.
const (
	codeNoMethod     = -32601
	codeAuthRequired = -32000
)

type object = map[string]any

// acpMessage is a message to the agent: a request, or a response if it has no method.
type acpMessage struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *acpFailure     `json:"error,omitempty"`
}

// acpLine is a message from the agent. Params and Result are parsed by method, to allow a response to a request with
// unexpected content.
type acpLine struct {
	ID             json.RawMessage
	Method         string
	Params, Result json.RawMessage
	Error          *acpFailure
}

// acpFailure is a JSON-RPC error.
type acpFailure struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// text returns all texts of an error.
func (f *acpFailure) text() string {
	data := string(bytes.TrimSpace(f.Data))
	if data == "null" {
		data = ""
	}
	return strings.TrimSpace(f.Message + " " + data)
}

// refusedKey matches a provider's error for an invalid key, which agents report as text.
var refusedKey = regexp.MustCompile(`\b40[13]\b|` +
	`(?i:unauthorized|forbidden|invalid[ _-]api[ _-]key|authentication[ _]error|permission[ _]denied)`)

// outcome returns the outcome for a failed request. Before the prompt, the agent is the cause. Afterwards, the model is
// the cause.
func (f *acpFailure) outcome(prompted bool) executor.Outcome {
	switch {
	case f.Code == codeAuthRequired, f.Code == 401, f.Code == 403, prompted && refusedKey.MatchString(f.text()):
		return executor.AuthError
	case prompted:
		return executor.ModelError
	}
	return executor.Crashed
}

// acpCapabilities are the capabilities of the agent.
type acpCapabilities struct {
	Protocol     json.RawMessage `json:"protocolVersion"`
	Capabilities struct {
		Load     bool `json:"loadSession"`
		Sessions struct {
			Resume json.RawMessage
		} `json:"sessionCapabilities"`
	} `json:"agentCapabilities"`
}

// opener returns the method for resuming a session. It is empty if the agent supports none.
func (c acpCapabilities) opener() string {
	resume := string(bytes.TrimSpace(c.Capabilities.Sessions.Resume))
	switch {
	case resume != "" && resume != "null" && resume != "false":
		return "session/resume" // does not replay the session
	case c.Capabilities.Load:
		return "session/load"
	}
	return ""
}

// acpResult is the response to a prompt.
type acpResult struct {
	Reason string `json:"stopReason"`
	Usage  *struct {
		Input  int64 `json:"inputTokens"`
		Output int64 `json:"outputTokens"`
		Read   int64 `json:"cachedReadTokens"`
		Write  int64 `json:"cachedWriteTokens"`
	}
	Meta struct {
		Quota struct {
			Tokens struct {
				Input  int64 `json:"input_tokens"`
				Output int64 `json:"output_tokens"`
			} `json:"token_count"`
		}
	} `json:"_meta"`
}

// usage returns the token usage from the protocol's field or from Gemini CLI's field.
func (r acpResult) usage() *executor.Usage {
	if u := r.Usage; u != nil {
		return &executor.Usage{Input: u.Input, Output: u.Output, CacheRead: u.Read, CacheWrite: u.Write}
	}
	if u := r.Meta.Quota.Tokens; u.Input != 0 || u.Output != 0 {
		return &executor.Usage{Input: u.Input, Output: u.Output}
	}
	return nil
}

// acpPermission is a request for permission to call a tool.
type acpPermission struct {
	ToolCall acpToolCall
	Options  []acpOption
}

type acpOption struct {
	ID   string `json:"optionId"`
	Kind string
}

// choose returns the response: the first option with one of the kinds. kinds is in order of preference.
func (p acpPermission) choose(kinds ...string) object {
	for _, kind := range kinds {
		if i := slices.IndexFunc(p.Options, func(o acpOption) bool { return o.Kind == kind }); i >= 0 {
			return object{"outcome": object{"outcome": "selected", "optionId": p.Options[i].ID}}
		}
	}
	return object{"outcome": object{"outcome": "cancelled"}}
}

// acpToolCall is a tool call, or an update of a tool call.
type acpToolCall struct {
	ID        string `json:"toolCallId"`
	Title     string
	Kind      string
	Status    string
	Input     json.RawMessage `json:"rawInput"`
	RawOutput json.RawMessage `json:"rawOutput"`
}

// acpUpdate is an update of a session.
type acpUpdate struct {
	Update string `json:"sessionUpdate"`
	acpToolCall
	Content json.RawMessage // block of a message, or list of a tool's outputs
}

// text returns the text of a message block.
func (u acpUpdate) text() string {
	var block struct{ Text string }
	if json.Unmarshal(u.Content, &block) != nil {
		return ""
	}
	return block.Text
}

// output returns the output of a tool.
func (u acpUpdate) output() string {
	var parts []struct {
		Content struct{ Text string }
	}
	var texts []string
	if json.Unmarshal(u.Content, &parts) == nil {
		for _, part := range parts {
			if part.Content.Text != "" {
				texts = append(texts, part.Content.Text)
			}
		}
	}
	var raw string
	switch {
	case len(texts) > 0:
		return strings.Join(texts, "\n")
	case json.Unmarshal(u.RawOutput, &raw) == nil:
		return raw
	}
	return string(u.RawOutput)
}

// acpTool is a running tool call.
type acpTool struct {
	executor.ToolUse
	kind    string
	started bool
}

// learn merges an update of a call. Titles and inputs may arrive late and may be repeated.
func (t *acpTool) learn(c acpToolCall) {
	t.kind = cmp.Or(c.Kind, t.kind)
	if len(c.Input) > 0 && string(c.Input) != "null" && string(c.Input) != "{}" {
		t.Input = executor.CutInput(c.Input)
	}
	if t.Server == "" {
		server, name := acpToolName(c.Title)
		if t.Server = server; server != "" || t.Name == "" {
			t.Name = name
		}
	}
}

// acpToolName extracts server and tool from a title. The protocol has no tool names, and agents have different formats
// for the tools of a server.
func acpToolName(title string) (server, name string) {
	title = cut(title)
	for _, form := range []struct{ before, after string }{
		{executor.Server + "_", ""},                   // OpenCode
		{"", " (" + executor.Server + " MCP Server)"}, // Gemini CLI
		{"mcp__" + executor.Server + "__", ""},        // Claude's adapter
	} {
		if inner, ok := strings.CutPrefix(title, form.before); ok {
			if inner, ok = strings.CutSuffix(inner, form.after); ok {
				return executor.Server, inner
			}
		}
	}
	return "", title
}
