package gemini

import (
	"cmp"
	"encoding/json"
	"regexp"
	"strings"

	"github.com/workcell-dev/workcell/executor"
)

// parser reads the events of --output-format stream-json.
type parser struct {
	began   bool   // the last text goes on
	problem string // the last one that was told
}

type line struct {
	Type       string
	Session    string `json:"session_id"`
	Role       string
	Content    string
	ToolName   string `json:"tool_name"`
	ToolID     string `json:"tool_id"`
	Parameters json.RawMessage
	Status     string
	Output     string
	Message    string
	Error      struct{ Type, Message string }
	Stats      struct {
		Output int64 `json:"output_tokens"`
		Cached int64
		Input  int64 // without the cached
	}
}

// Line implements executor.Parser.
func (p *parser) Line(b []byte) []executor.Event {
	var l line
	if json.Unmarshal(b, &l) != nil {
		return []executor.Event{executor.Raw(b)}
	}
	began := p.began
	p.began = l.Type == "message" && l.Role == "assistant"
	switch {
	case l.Type == "init":
		return []executor.Event{{Kind: executor.KindSession, Session: l.Session}}
	case p.began:
		return []executor.Event{{Kind: executor.KindText, Text: l.Content, Delta: began}}
	case l.Type == "tool_use":
		server, name := "", l.ToolName
		if rest, ok := strings.CutPrefix(l.ToolName, "mcp_"+executor.Server+"_"); ok {
			server, name = executor.Server, rest
		}
		return []executor.Event{{Kind: executor.KindToolStart, Tool: &executor.ToolUse{
			ID: l.ToolID, Name: name, Server: server, Input: executor.CutInput(l.Parameters),
		}}}
	case l.Type == "tool_result":
		return []executor.Event{{Kind: executor.KindToolEnd, Tool: &executor.ToolUse{
			ID: l.ToolID, Output: executor.CutText(l.Output), Failed: l.Status == "error",
		}}}
	case l.Type == "error":
		p.problem = l.Message
		return []executor.Event{{Kind: executor.KindNotice, Text: l.Message}}
	case l.Type == "result":
		u := executor.Usage{Input: l.Stats.Input, Output: l.Stats.Output, CacheRead: l.Stats.Cached}
		return []executor.Event{{Kind: executor.KindUsage, Usage: &u}, {Kind: executor.KindEnd, End: p.end(l)}}
	}
	return []executor.Event{executor.Raw(b)}
}

// refused matches the API's answer to a wrong key, which the CLI tells as text.
var refused = regexp.MustCompile(`"code": ?40[13]\b`)

func (p *parser) end(l line) *executor.End {
	if l.Status == "success" {
		return &executor.End{Outcome: executor.Completed}
	}
	e := &executor.End{Outcome: executor.ModelError, Detail: cmp.Or(l.Error.Message, p.problem)}
	switch {
	case l.Error.Type == "FatalTurnLimitedError":
		e.Outcome = executor.MaxTurns
	case strings.Contains(e.Detail, "response was blocked"): // by the provider's filters; the CLI tells no more
		e.Outcome = executor.Refused
	case l.Error.Type == "FatalAuthenticationError", refused.MatchString(l.Error.Message):
		e.Outcome = executor.AuthError
	}
	return e
}
