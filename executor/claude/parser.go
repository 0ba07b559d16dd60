package claude

import (
	"encoding/json"

	"github.com/workcell-dev/workcell/executor"
)

// parser reads stream-json with partial messages: deltas, then each block as a whole.
type parser struct {
	began    bool // the last delta belongs to a block that goes on
	streamed bool // the text of this message came as deltas
	failed   bool // the last message was the CLI's own, about an answer that did not come
}

type line struct {
	Type    string
	Subtype string
	Session string `json:"session_id"`
	Parent  string `json:"parent_tool_use_id"` // of what a sub-agent says
	Event   streamEvent
	Message struct{ Content json.RawMessage }
	Failure bool `json:"is_api_error_message"` // the message is the CLI's own, about an answer that did not come

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

// Line implements executor.Parser.
func (p *parser) Line(b []byte) []executor.Event {
	var l line
	if json.Unmarshal(b, &l) != nil {
		return []executor.Event{executor.Raw(b)}
	}
	var events []executor.Event
	switch {
	case l.Type == "system" && l.Subtype == "init":
		events = append(events, executor.Event{Kind: executor.KindSession, Session: l.Session})
	case l.Type == "stream_event" && l.Parent == "":
		events = p.delta(l.Event)
	case l.Type == "assistant":
		events = p.message(l)
	case l.Type == "user":
		events = results(l)
	case l.Type == "result":
		events = []executor.Event{usage(l), end(l, p.failed)}
	}
	if events == nil {
		return []executor.Event{executor.Raw(b)}
	}
	return events
}

// delta returns the part of a block of text.
func (p *parser) delta(e streamEvent) []executor.Event {
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

// message returns the tools that a message calls, and its text unless that came as deltas. What a sub-agent says is no answer.
func (p *parser) message(l line) []executor.Event {
	var events []executor.Event
	p.failed = l.Failure
	for _, b := range blocks(l.Message.Content) {
		switch {
		case b.Type == "text" && l.Failure:
			events = append(events, executor.Event{Kind: executor.KindNotice, Text: b.Text})
		case b.Type == "text" && l.Parent == "" && !p.streamed:
			events = append(events, executor.Event{Kind: executor.KindText, Text: b.Text})
		case b.Type == "tool_use":
			server, name := toolServer(b.Name)
			events = append(events, executor.Event{Kind: executor.KindToolStart, Tool: &executor.ToolUse{
				ID: b.ID, Name: name, Server: server, Input: executor.CutInput(b.Input),
			}})
		}
	}
	return events
}

// results returns the ends of the tools that a message of the user's has.
func results(l line) []executor.Event {
	var events []executor.Event
	for _, b := range blocks(l.Message.Content) {
		if b.Type == "tool_result" {
			events = append(events, executor.Event{Kind: executor.KindToolEnd, Tool: &executor.ToolUse{
				ID: b.ToolUseID, Output: executor.CutText(plain(b.Content)), Failed: b.IsError,
			}})
		}
	}
	return events
}

// blocks returns the blocks of a message; a message may also be text.
func blocks(raw json.RawMessage) []block {
	var list []block
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	return list
}

// plain returns the text of a result, which is text or blocks.
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

// usage returns what all models were used: those of the session, earlier calls included.
func usage(l line) executor.Event {
	u := executor.Usage{Whole: true}
	for _, m := range l.ModelUsage {
		u.Input += m.InputTokens
		u.Output += m.OutputTokens
		u.CacheRead += m.CacheReadInputTokens
		u.CacheWrite += m.CacheCreationInputTokens
	}
	return executor.Event{Kind: executor.KindUsage, Usage: &u}
}

// end returns how the CLI says it ended; failed says that the model's last answer did not come.
func end(l line, failed bool) executor.Event {
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
		return executor.Event{Kind: executor.KindEnd, End: &e}
	}
	e.Detail = l.Result
	for _, text := range l.Errors {
		if len(e.Detail) > executor.MaxToolText { // a list without end, which no CLI writes
			break
		}
		e.Detail += "\n" + text
	}
	return executor.Event{Kind: executor.KindEnd, End: &e}
}
