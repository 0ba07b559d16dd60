package scripted

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/transcript"
)

// position is a position in an agent's script. It is part of the references of tool calls, which return with the tools'
// outputs. Therefore, the model needs no state for a conversation, and parallel conversations do not mix.
type position struct {
	invocation int // index
	turn       int // index
}

func (at position) ref(call int) string {
	return fmt.Sprintf("scripted-%d-%d-%d", at.invocation, at.turn, call)
}

func parseRef(ref string) (at position, ok bool) {
	var call int
	n, err := fmt.Sscanf(ref, "scripted-%d-%d-%d", &at.invocation, &at.turn, &call)
	return at, err == nil && n == 3
}

// answer plays the turn for req.
func (p *Plugin) answer(
	ctx context.Context, agent string, req *ai.ModelRequest, cb ai.ModelStreamCallback,
) (*ai.ModelResponse, error) {
	play, err := p.find(ctx, agent, req)
	if err != nil {
		return nil, err
	}
	if err := play.check(ctx); err != nil {
		return nil, err
	}
	parts, err := play.parts(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream(ctx, parts, cb); err != nil {
		return nil, err
	}
	return &ai.ModelResponse{
		Request:      req,
		Message:      ai.NewModelMessage(parts...),
		FinishReason: ai.FinishReasonStop,
		Usage: &ai.GenerationUsage{
			InputTokens: estimate(req.Messages), OutputTokens: estimate([]*ai.Message{{Content: parts}}),
		},
	}, nil
}

// bytesPerToken is the approximate number of bytes per token of current models for English text and code.
const bytesPerToken = 4

// estimate returns the approximate number of tokens in messages, because no model counts them.
func estimate(messages []*ai.Message) int {
	size := 0
	for _, m := range messages {
		for _, part := range m.Content {
			raw, _ := part.MarshalJSON() // parts that cannot be sent to a model do not count
			size += len(raw)
		}
	}
	return (size + bytesPerToken - 1) / bytesPerToken
}

// playing is a turn with the variables of the expressions.
type playing struct {
	file  string
	agent string
	at    position
	turn  *turn
	vars  map[string]any
}

func (p *Plugin) find(ctx context.Context, agent string, req *ai.ModelRequest) (*playing, error) {
	invocations := p.script.agents[agent]
	if invocations == nil {
		return nil, fmt.Errorf("%s has no turns for agent %q, only for %s",
			p.script.file, agent, strings.Join(p.script.Agents(), ", "))
	}
	vars, err := p.variables(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("%s: agent %s: %w", p.script.file, agent, err)
	}
	play := &playing{file: p.script.file, agent: agent, vars: vars}
	if at, ok := lastPosition(req); ok {
		play.at = position{at.invocation, at.turn + 1}
	} else if play.at.invocation, err = p.begin(ctx, agent, vars); err != nil {
		return nil, err
	}
	if play.at.invocation < 0 || play.at.invocation >= len(invocations) {
		return nil, play.errorf(0, "the conversation belongs to another script")
	}
	inv := invocations[play.at.invocation]
	if play.at.turn < 0 || play.at.turn >= len(inv.turns) {
		return nil, play.errorf(inv.line, "turn not found; the invocation has %d", len(inv.turns))
	}
	play.turn = inv.turns[play.at.turn]
	return play, nil
}

// begin returns the first unplayed invocation whose condition is true, and marks it as played.
func (p *Plugin) begin(ctx context.Context, agent string, vars map[string]any) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	invocations := p.script.agents[agent]
	run, _ := ctx.Value(runKey{}).(string)
	taken := 0
	for i, inv := range invocations {
		if p.taken[taking{run, inv}] {
			taken++
			continue
		}
		if inv.when != nil {
			ok, err := inv.when.EvalBool(ctx, map[string]any{"input": vars["input"], "prompt": vars["prompt"]})
			if err != nil {
				return 0, fmt.Errorf("%s:%d: agent %s, invocation %d: when: %w", p.script.file, inv.line, agent, i+1, err)
			}
			if !ok {
				continue
			}
		}
		if run != "" {
			p.taken[taking{run, inv}] = true
		}
		return i, nil
	}
	if free := len(invocations) - taken; free > 0 {
		return 0, fmt.Errorf("%s: agent %s, invocation %d, turn 1: when is false for all %d remaining invocations",
			p.script.file, agent, taken+1, free)
	}
	return 0, fmt.Errorf("%s: agent %s, invocation %d, turn 1: the script has only %d invocation(s) of this agent",
		p.script.file, agent, taken+1, len(invocations))
}

// lastPosition returns the turn whose tool outputs end the conversation. It returns false if the conversation ends with
// a user message. It ignores Workcell's notices to the model.
func lastPosition(req *ai.ModelRequest) (position, bool) {
	for _, m := range slices.Backward(req.Messages) {
		if transcript.IsNotice(m) {
			continue
		}
		for _, part := range m.Content {
			if part.IsToolResponse() {
				return parseRef(part.ToolResponse.Ref)
			}
		}
		break
	}
	return position{}, false
}

// variables returns the variables of expressions.
func (p *Plugin) variables(ctx context.Context, req *ai.ModelRequest) (map[string]any, error) {
	input, _ := ctx.Value(inputKey{}).(map[string]any)
	if input == nil {
		input = map[string]any{}
	}
	outputs := []any{}
	prompt := ""
	for _, m := range req.Messages {
		if m.Role == ai.RoleUser && !transcript.IsNotice(m) {
			prompt, outputs = m.Text(), []any{} // earlier messages belong to an earlier invocation
		}
		for _, part := range m.Content {
			if !part.IsToolResponse() {
				continue
			}
			if _, ours := parseRef(part.ToolResponse.Ref); ours {
				outputs = append(outputs, part.ToolResponse.Output)
			}
		}
	}
	var last any
	if len(outputs) > 0 {
		last = outputs[len(outputs)-1]
	}
	vars := map[string]any{"input": input, "prompt": prompt, "outputs": outputs, "last": last}
	for name, v := range vars {
		plain, err := expr.Normalize(v, maxVarBytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		vars[name] = plain
	}
	return vars, nil
}

// maxVarBytes is the maximum size of the tool outputs of one invocation.
const maxVarBytes = 64 << 20

// check evaluates the expectations of the turn.
func (play *playing) check(ctx context.Context) error {
	for _, e := range play.turn.expect {
		ok, err := e.EvalBool(ctx, play.vars)
		if err != nil {
			return play.errorf(e.Node.Line, "expect %s: %w; the last tool output was %s", e.Node.Value, err, play.lastText())
		}
		if !ok {
			return play.errorf(e.Node.Line, "expected %s; the last tool output was %s", e.Node.Value, play.lastText())
		}
	}
	return nil
}

func (play *playing) lastText() string { return sanitize.Cut(expr.Text(play.vars["last"]), 2000) }

// parts evaluates the turn's answer.
func (play *playing) parts(ctx context.Context) ([]*ai.Part, error) {
	var parts []*ai.Part
	text, err := play.text(ctx)
	if err != nil {
		return nil, play.evalError(err)
	}
	if text != "" {
		parts = append(parts, ai.NewTextPart(text))
	}
	for i, c := range play.turn.calls {
		input := any(map[string]any{})
		if c.input != nil {
			if input, err = c.input.Eval(ctx, play.vars); err != nil {
				return nil, play.evalError(err)
			}
		}
		parts = append(parts, ai.NewToolRequestPart(&ai.ToolRequest{Name: c.tool, Ref: play.at.ref(i), Input: input}))
	}
	return parts, nil
}

// text returns the text of the turn: the text field, or the JSON document of the json field.
func (play *playing) text(ctx context.Context) (string, error) {
	switch {
	case play.turn.text != nil:
		return play.turn.text.EvalString(ctx, play.vars)
	case play.turn.json != nil:
		v, err := play.turn.json.Eval(ctx, play.vars)
		if err != nil {
			return "", err
		}
		doc, err := json.Marshal(v)
		return string(doc), err
	default:
		return "", nil
	}
}

func (play *playing) evalError(err error) error {
	return play.errorf(play.turn.line, "%w; the last tool output was %s", err, play.lastText())
}

// errorf returns an error with a position: file, line, agent, invocation, and turn, counted from 1.
func (play *playing) errorf(line int, format string, args ...any) error {
	args = append([]any{play.file, line, play.agent, play.at.invocation + 1, play.at.turn + 1}, args...)
	return fmt.Errorf("%s:%d: agent %s, invocation %d, turn %d: "+format, args...)
}

// stream sends the parts to the callback, if the caller requested streaming. It splits text into words and sends tool
// calls as a whole.
func stream(ctx context.Context, parts []*ai.Part, cb ai.ModelStreamCallback) error {
	if cb == nil {
		return nil
	}
	for _, part := range parts {
		pieces := []*ai.Part{part}
		if part.IsText() {
			pieces = nil
			for word := range strings.SplitAfterSeq(part.Text, " ") {
				pieces = append(pieces, ai.NewTextPart(word))
			}
		}
		for _, piece := range pieces {
			chunk := &ai.ModelResponseChunk{Role: ai.RoleModel, Content: []*ai.Part{piece}}
			if err := cb(ctx, chunk); err != nil {
				return err
			}
		}
	}
	return nil
}
