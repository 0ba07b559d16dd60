// Package transcript records an agent's conversation with the model part by part, so another process can continue it.
// Recorded model answers are not requested again, and recorded tool calls are not repeated.
//
// A conversation is a sequence of parts in JSON. A turn is a model answer calling tools, with the messages before it. A
// call is the result of one of these tool calls, recorded as soon as the tool has returned. An answer without tool
// calls ends the conversation and is not recorded.
package transcript

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/internal/toolspec"
)

// MaxBytes is the maximum size of all parts of one conversation. It is larger than the longest model context as text (a
// million tokens of four bytes) plus some images.
const MaxBytes = 16 << 20

// ErrInvalid means a part cannot be decoded or does not follow the earlier parts.
var ErrInvalid = errors.New("the recorded conversation is damaged")

// part is one recorded part. Exactly one field is set.
type part struct {
	Turn *turn `json:"turn,omitempty"`
	Call *call `json:"call,omitempty"`
	// Lost is the reason why recording stopped. The conversation cannot be continued then.
	Lost string `json:"lost,omitempty"`
	// Restart is the reason why the agent starts from the beginning. Earlier parts do not count.
	Restart string `json:"restart,omitempty"`
}

// turn is a model answer calling tools.
type turn struct {
	Number       int               `json:"number"`             // starting at 1, without gaps
	Keep         int               `json:"keep"`               // how many earlier messages begin the model's request
	Messages     []json.RawMessage `json:"messages,omitempty"` // messages of the request after those
	Answer       json.RawMessage   `json:"answer"`
	Definition   string            `json:"definition,omitempty"` // digest of the agent, in the first turn
	InputTokens  int               `json:"input_tokens,omitempty"`
	OutputTokens int               `json:"output_tokens,omitempty"`
}

// call is the result of a tool call.
type call struct {
	Turn   int                       `json:"turn"`
	Ref    string                    `json:"ref"` // reference of the call, unique in its turn
	Result *ai.MultipartToolResponse `json:"result"`
}

// Conversation is a recorded conversation. The zero value is a conversation before the start. It is not safe for
// concurrent use.
type Conversation struct {
	turns    int
	messages []json.RawMessage // messages of the model request for the latest turn
	answer   json.RawMessage   // answer of the latest turn
	requests []*ai.ToolRequest // tool calls of answer
	results  map[string]*ai.MultipartToolResponse
	bytes    int // size of all parts
	lost     string

	definition string // digest from the first turn

	calls, input, output int               // totals of all turns: tool calls with a result, and tokens
	sandboxes            map[string]string // session keys of sandboxes in use, by id
	execs                []string          // distinct ids of commands
	recorded             time.Time
}

// Turns returns the number of turns.
func (c *Conversation) Turns() int { return c.turns }

// Bytes returns the size of all parts.
func (c *Conversation) Bytes() int { return c.bytes }

// Lost returns the reason why the conversation was not recorded completely, or "".
func (c *Conversation) Lost() string { return c.lost }

// Execs returns the ids of the commands in results. They may still be running, and the model knows them.
func (c *Conversation) Execs() []string { return c.execs }

// Ends returns the reason why a part ends the conversation before it, or "". restarts reports whether a new
// conversation follows.
func Ends(raw json.RawMessage) (why string, restarts bool) {
	p, err := decode(raw)
	if err != nil {
		return "", false
	}
	return cmp.Or(p.Lost, p.Restart), p.Restart != ""
}

// Refs returns the references of the tool calls in a turn. For other parts and invalid parts, it returns nil.
func Refs(raw json.RawMessage) []string {
	p, err := decode(raw)
	if err != nil || p.Turn == nil {
		return nil
	}
	requests, _ := requestsOf(p.Turn.Answer) // nil for an invalid turn
	var refs []string
	for _, req := range requests {
		refs = append(refs, req.Ref)
	}
	return refs
}

// Add adds the next part, which was recorded at the specified time. If Add fails with ErrInvalid, it changes nothing.
func (c *Conversation) Add(raw json.RawMessage, at time.Time) error {
	p, err := decode(raw)
	switch {
	case err != nil:
	case c.lost != "":
		err = errors.New("a part follows the last part of the record")
	case p.Lost == "" && c.bytes+len(raw) > MaxBytes:
		err = fmt.Errorf("it has more than %d bytes", MaxBytes)
	case p.Turn != nil:
		err = c.addTurn(p.Turn)
	case p.Call != nil:
		err = c.addCall(p.Call)
	case p.Restart != "":
		*c = Conversation{bytes: c.bytes}
	default:
		c.lost = p.Lost
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	c.bytes, c.recorded = c.bytes+len(raw), at
	return nil
}

// decode decodes a part strictly.
func decode(raw json.RawMessage) (p part, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return p, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return p, errors.New("unexpected data after the part")
	}
	set := 0
	for _, given := range []bool{p.Turn != nil, p.Call != nil, p.Lost != "", p.Restart != ""} {
		if given {
			set++
		}
	}
	if set != 1 {
		return p, errors.New("a part must be turn, call, lost, or restart")
	}
	return p, nil
}

func (c *Conversation) addTurn(t *turn) error {
	before, err := c.next()
	switch {
	case t.Number != c.turns+1:
		return fmt.Errorf("turn %d follows turn %d", t.Number, c.turns)
	case err != nil:
		return err
	case t.Keep < 0 || t.Keep > len(before):
		return fmt.Errorf("turn %d keeps %d of %d messages", t.Number, t.Keep, len(before))
	case t.InputTokens < 0 || t.OutputTokens < 0:
		return fmt.Errorf("turn %d has a negative number of tokens", t.Number)
	}
	for _, raw := range t.Messages {
		if _, err := message(raw); err != nil {
			return fmt.Errorf("turn %d: %w", t.Number, err)
		}
	}
	requests, err := requestsOf(t.Answer)
	if err != nil {
		return fmt.Errorf("answer of turn %d: %w", t.Number, err)
	}
	c.definition = cmp.Or(c.definition, t.Definition)
	c.turns, c.messages, c.answer = t.Number, slices.Concat(before[:t.Keep], t.Messages), t.Answer
	c.requests, c.results = requests, map[string]*ai.MultipartToolResponse{}
	c.input += t.InputTokens
	c.output += t.OutputTokens
	return nil
}

// message decodes a message.
func message(raw json.RawMessage) (*ai.Message, error) {
	var m *ai.Message
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	if m == nil || m.Role == "" || slices.Contains(m.Content, nil) {
		return nil, errors.New("a message without a role or with empty parts")
	}
	return m, nil
}

// requestsOf returns the tool calls of an answer. At least one must exist, and each must have a unique reference.
func requestsOf(raw json.RawMessage) ([]*ai.ToolRequest, error) {
	answer, err := message(raw)
	if err != nil {
		return nil, err
	}
	var requests []*ai.ToolRequest
	seen := map[string]bool{"": true}
	for _, p := range answer.Content {
		if !p.IsToolRequest() {
			continue
		}
		if seen[p.ToolRequest.Ref] {
			return nil, errors.New("tool calls without unique references")
		}
		seen[p.ToolRequest.Ref] = true
		requests = append(requests, p.ToolRequest)
	}
	if answer.Role != ai.RoleModel || requests == nil {
		return nil, errors.New("it calls no tools")
	}
	return requests, nil
}

func (c *Conversation) addCall(call *call) error {
	at := slices.IndexFunc(c.requests, func(r *ai.ToolRequest) bool { return r.Ref == call.Ref })
	switch {
	case call.Turn != c.turns || at < 0:
		return fmt.Errorf("unknown call %.40q in turn %d", call.Ref, call.Turn)
	case c.results[call.Ref] != nil:
		return fmt.Errorf("two results of call %.40q in turn %d", call.Ref, call.Turn)
	case call.Result == nil || slices.Contains(call.Result.Content, nil):
		return fmt.Errorf("no result of call %.40q in turn %d", call.Ref, call.Turn)
	}
	c.results[call.Ref] = call.Result
	c.calls++
	c.noteSandbox(c.requests[at], call.Result)
	if out, ok := call.Result.Output.(map[string]any); ok {
		if id, ok := out["exec_id"].(string); ok && id != "" && !slices.Contains(c.execs, id) {
			c.execs = append(c.execs, id)
		}
	}
	return nil
}

// noteSandbox records which sandbox a call opened, used, or closed. The first tool needing the agent's own sandbox
// opens it.
func (c *Conversation) noteSandbox(req *ai.ToolRequest, res *ai.MultipartToolResponse) {
	in, _ := req.Input.(map[string]any)
	out, _ := res.Output.(map[string]any)
	text := func(m map[string]any, key string) string {
		s, _ := m[key].(string)
		return s
	}
	if c.sandboxes = maps.Clone(c.sandboxes); c.sandboxes == nil {
		c.sandboxes = map[string]string{}
	}
	switch {
	case !strings.HasPrefix(req.Name, "sandbox_") || req.Name == toolspec.ToolRun:
	case req.Name == toolspec.ToolClose && out["error"] == nil:
		closed := text(in, "sandbox_id")
		key, known := c.sandboxes[closed] // the agent's own sandbox may have been recorded before the id was known
		maps.DeleteFunc(c.sandboxes, func(id, k string) bool { return closed == "" || id == closed || known && k == key })
	case req.Name == toolspec.ToolOpen && out["error"] == nil:
		c.sandboxes[text(out, "sandbox_id")] = text(in, "session_key")
	case req.Name != toolspec.ToolClose && text(in, "sandbox_id") == "" && len(c.sandboxes) == 0:
		c.sandboxes[""] = ""
	}
}

// next returns the messages of the model request after the latest turn, unless a caller changes them: the earlier
// messages, the answer, and one message with the results of its calls. If a result is missing, next returns an error.
func (c *Conversation) next() ([]json.RawMessage, error) {
	if c.turns == 0 {
		return nil, nil
	}
	responses := &ai.Message{Role: ai.RoleTool}
	for _, req := range c.requests {
		res := c.results[req.Ref]
		if res == nil {
			return nil, fmt.Errorf("turn %d has no result of call %.40q", c.turns, req.Ref)
		}
		p := ai.NewToolResponsePart(&ai.ToolResponse{Name: req.Name, Ref: req.Ref, Output: res.Output, Content: res.Content})
		p.Metadata = res.Metadata
		responses.Content = append(responses.Content, p)
	}
	raw, err := json.Marshal(responses)
	return append(c.messages[:len(c.messages):len(c.messages)], c.answer, raw), err
}
