package opencode

import (
	"encoding/json"
	"strings"

	"github.com/workcell-dev/workcell/executor"
)

// parser reads the events of opencode run --format json.
type parser struct {
	session bool // was told
	turns   int
}

type line struct {
	Type    string
	Session string `json:"sessionID"`
	Part    part
	Error   struct {
		Name string
		Data struct {
			Message    string
			StatusCode int `json:"statusCode"`
		}
	}
}

type part struct {
	Text, Tool, CallID, Reason string
	State                      struct {
		Status, Output, Error string
		Input                 json.RawMessage
		Metadata              struct{ Exit int } // of a command
	}
	Tokens struct {
		Input, Output, Reasoning int64
		Cache                    struct{ Read, Write int64 }
	}
}

// Line implements executor.Parser.
func (p *parser) Line(b []byte) []executor.Event {
	var l line
	if json.Unmarshal(b, &l) != nil {
		return []executor.Event{executor.Raw(b)}
	}
	var events []executor.Event
	if l.Session != "" && !p.session {
		p.session = true
		events = append(events, executor.Event{Kind: executor.KindSession, Session: l.Session})
	}
	switch l.Type {
	case "text":
		events = append(events, executor.Event{Kind: executor.KindText, Text: l.Part.Text})
	case "reasoning":
		events = append(events, executor.Event{Kind: executor.KindThinking, Text: l.Part.Text})
	case "tool_use":
		events = append(events, tool(l.Part)...)
	case "step_finish":
		events = append(events, p.step(l.Part)...)
	case "error":
		events = append(events, executor.Event{Kind: executor.KindEnd, End: failure(l)})
	}
	if events == nil {
		return []executor.Event{executor.Raw(b)}
	}
	return events
}

// tool returns start and end of a tool: the CLI tells of it when it ended.
func tool(p part) []executor.Event {
	server, name := "", p.Tool
	if rest, ok := strings.CutPrefix(p.Tool, executor.Server+"_"); ok {
		server, name = executor.Server, rest
	}
	return []executor.Event{
		{Kind: executor.KindToolStart, Tool: &executor.ToolUse{ID: p.CallID, Name: name, Server: server, Input: executor.CutInput(p.State.Input)}},
		{Kind: executor.KindToolEnd, Tool: &executor.ToolUse{
			ID: p.CallID, Output: executor.CutText(p.State.Output + p.State.Error),
			Failed: p.State.Status == "error" || p.State.Metadata.Exit != 0,
		}},
	}
}

// step returns the use of a step, and that it is the last one: only then the model stops for another reason than tools.
func (p *parser) step(s part) []executor.Event {
	p.turns++
	u := executor.Usage{Input: s.Tokens.Input, Output: s.Tokens.Output + s.Tokens.Reasoning, CacheRead: s.Tokens.Cache.Read, CacheWrite: s.Tokens.Cache.Write}
	events := []executor.Event{{Kind: executor.KindUsage, Usage: &u}}
	end := executor.End{Outcome: executor.Completed, Turns: p.turns}
	switch s.Reason {
	case "tool-calls":
		return events
	case "content-filter":
		end.Outcome = executor.Refused
	case "error", "unknown":
		end.Outcome = executor.ModelError
	}
	return append(events, executor.Event{Kind: executor.KindEnd, End: &end})
}

func failure(l line) *executor.End {
	end := &executor.End{Outcome: executor.ModelError, Detail: strings.TrimSpace(l.Error.Name + " " + l.Error.Data.Message)}
	if l.Error.Name == "ContentFilterError" {
		end.Outcome = executor.Refused
	}
	if l.Error.Name == "ProviderAuthError" || l.Error.Data.StatusCode == 401 || l.Error.Data.StatusCode == 403 {
		end.Outcome = executor.AuthError
	}
	return end
}
