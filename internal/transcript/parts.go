package transcript

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/ai"
)

// RoleNote is the role of a Part without a message. The text describes a gap in the record.
const RoleNote = "note"

// Part is a part of a message, for people who read a conversation.
type Part struct {
	Turn      int    `json:"turn,omitempty"`
	Role      string `json:"role"` // system, user, model, tool, or RoleNote
	Text      string `json:"text,omitempty"`
	Reasoning bool   `json:"reasoning,omitempty"` // Text is the model's reasoning
	Media     string `json:"media,omitempty"`     // content type of a medium, whose data is omitted
	Tool      string `json:"tool,omitempty"`      // name of the tool in a request or a response
	Ref       string `json:"ref,omitempty"`       // the same in a request and its response
	Input     any    `json:"input,omitempty"`     // of a request
	Output    any    `json:"output,omitempty"`    // of a response, or data
}

// Reader reads the parts of one conversation in their order for people. Recorded parts may be missing or damaged. The
// zero value is ready for use.
type Reader struct {
	turn  int
	tools map[string]string // names by reference, of the latest turn
}

// Read returns the contents of a recorded part.
func (r *Reader) Read(raw json.RawMessage) []Part {
	p, err := decode(raw)
	switch {
	case err != nil:
		return []Part{r.note("a part of the conversation cannot be read: " + err.Error())}
	case p.Turn != nil:
		return r.readTurn(p.Turn)
	case p.Call == nil:
		end := Part{Turn: r.turn, Role: RoleNote, Text: "the following messages were not recorded: " + p.Lost}
		if p.Restart != "" {
			end.Text, r.turn = "the agent starts again: "+p.Restart, 0
		}
		return []Part{end}
	case p.Call.Result == nil:
		return nil
	}
	first := Part{Turn: p.Call.Turn, Role: string(ai.RoleTool), Tool: r.tools[p.Call.Ref], Ref: p.Call.Ref}
	first.Output = p.Call.Result.Output
	list := []Part{first}
	for _, c := range p.Call.Result.Content {
		list = append(list, partOf(p.Call.Turn, ai.RoleTool, c))
	}
	return list
}

func (r *Reader) note(text string) Part { return Part{Turn: r.turn, Role: RoleNote, Text: text} }

// readTurn returns the new messages of the request and the answer.
func (r *Reader) readTurn(t *turn) (list []Part) {
	if t.Number > r.turn+1 {
		list = append(list, r.note("the earlier messages are no longer available"))
	}
	first := t.Number == 1
	r.turn, r.tools = t.Number, map[string]string{}
	for i, raw := range append(slices.Clip(t.Messages), t.Answer) {
		m, err := message(raw)
		if err != nil {
			list = append(list, r.note("a message cannot be read: "+err.Error()))
			continue
		}
		if !first && i < len(t.Messages) && (m.Role == ai.RoleModel || m.Role == ai.RoleTool) {
			continue // it was a part before
		}
		for _, c := range m.Content {
			if c.IsToolRequest() {
				r.tools[c.ToolRequest.Ref] = c.ToolRequest.Name
			}
			list = append(list, partOf(t.Number, m.Role, c))
		}
	}
	return list
}

// Answer returns the final answer of an agent, which is not a recorded part.
func Answer(output any) Part {
	text, _ := output.(string)
	if text != "" {
		output = nil
	}
	return Part{Role: string(ai.RoleModel), Text: text, Output: output}
}

func partOf(turn int, role ai.Role, c *ai.Part) Part {
	p := Part{Turn: turn, Role: string(role)}
	switch {
	case c.IsToolRequest():
		p.Tool, p.Ref, p.Input = c.ToolRequest.Name, c.ToolRequest.Ref, c.ToolRequest.Input
	case c.IsToolResponse():
		p.Tool, p.Ref, p.Output = c.ToolResponse.Name, c.ToolResponse.Ref, c.ToolResponse.Output
	case c == nil:
	case c.IsMedia():
		media, _, _ := strings.Cut(strings.TrimPrefix(c.Text, "data:"), ";")
		if p.Media = c.ContentType; p.Media == "" {
			p.Media = media
		}
	case c.IsText(), c.IsReasoning():
		p.Text, p.Reasoning = c.Text, c.IsReasoning()
	default:
		p.Output = c.Data
	}
	return p
}
