package codex

import (
	"encoding/json"
	"strings"

	"github.com/workcell-dev/workcell/executor"
)

// parser reads the events of codex exec --json.
type parser struct{}

type line struct {
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

	// Of mcp_tool_call.
	Server, Tool string
	Arguments    json.RawMessage
	Result       *struct {
		Content []struct{ Type, Text string }
	}
	Error *struct{ Message string }

	// Of command_execution.
	Command string
	Output  string `json:"aggregated_output"`

	// Of file_change and web_search.
	Changes json.RawMessage
	Query   string
}

// Line implements executor.Parser.
func (p *parser) Line(b []byte) []executor.Event {
	var l line
	if json.Unmarshal(b, &l) != nil {
		return []executor.Event{executor.Raw(b)}
	}
	switch l.Type {
	case "thread.started":
		return []executor.Event{{Kind: executor.KindSession, Session: l.Thread}}
	case "item.started", "item.completed":
		if events := p.item(l); events != nil {
			return events
		}
	case "turn.completed":
		// The CLI counts the cached tokens among those of the input.
		u := executor.Usage{
			Input: max(0, l.Usage.Input-l.Usage.Cached), Output: l.Usage.Output, CacheRead: l.Usage.Cached, CacheWrite: l.Usage.CacheWrite, Whole: true,
		}
		return []executor.Event{
			{Kind: executor.KindUsage, Usage: &u},
			{Kind: executor.KindEnd, End: &executor.End{Outcome: executor.Completed}},
		}
	case "turn.failed":
		return []executor.Event{{Kind: executor.KindEnd, End: &executor.End{Outcome: failure(l.Error.Message), Detail: l.Error.Message}}}
	case "error":
		return []executor.Event{{Kind: executor.KindNotice, Text: l.Message}}
	}
	return []executor.Event{executor.Raw(b)}
}

// failure returns the outcome of a turn that failed: the CLI tells no more than a text, which has the status of the answer.
func failure(message string) executor.Outcome {
	for _, status := range []string{"401 Unauthorized", "403 Forbidden"} {
		if strings.Contains(message, status) {
			return executor.AuthError
		}
	}
	return executor.ModelError
}

// item returns the events of an item; nil when it is of a kind that has none.
func (p *parser) item(l line) []executor.Event {
	var it item
	if json.Unmarshal(l.Item, &it) != nil {
		return nil
	}
	done := l.Type == "item.completed"
	switch {
	case it.Type == "agent_message" && done:
		return []executor.Event{{Kind: executor.KindText, Text: it.Text}}
	case it.Type == "reasoning" && done:
		return []executor.Event{{Kind: executor.KindThinking, Text: it.Text}}
	case it.Type == "error":
		return []executor.Event{{Kind: executor.KindNotice, Text: it.Message}}
	case it.Type == "mcp_tool_call", it.Type == "command_execution", it.Type == "file_change", it.Type == "web_search":
		return p.tool(it, done)
	}
	return nil
}

// tool returns the start or the end of a tool.
func (p *parser) tool(it item, done bool) []executor.Event {
	use := &executor.ToolUse{ID: it.ID, Name: it.Type}
	var input any
	switch it.Type {
	case "mcp_tool_call":
		use.Name, use.Server, input = it.Tool, it.Server, it.Arguments
	case "command_execution":
		input = map[string]string{"command": it.Command}
	case "file_change":
		input = map[string]json.RawMessage{"changes": it.Changes}
	case "web_search":
		input = map[string]string{"query": it.Query}
	}
	if !done {
		raw, _ := json.Marshal(input) // what is no JSON has no place in an event
		use.Input = executor.CutInput(raw)
		return []executor.Event{{Kind: executor.KindToolStart, Tool: use}}
	}
	use.Output, use.Failed = it.Output, it.Status == "failed" || it.Error != nil
	if it.Result != nil {
		for _, c := range it.Result.Content {
			if len(use.Output) <= executor.MaxToolText { // what is above is cut
				use.Output += c.Text
			}
		}
	}
	if it.Error != nil {
		use.Output += it.Error.Message
	}
	use.Output = executor.CutText(use.Output)
	return []executor.Event{{Kind: executor.KindToolEnd, Tool: use}}
}
