package transcript

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firebase/genkit/go/ai"
)

// ErrFull is returned by a Write function without room for a part. The conversation continues without a record.
var ErrFull = errors.New("record limit of conversations reached")

// Write stores a part. The part must be stored when Write returns. An error other than ErrFull ends the conversation.
type Write func(ctx context.Context, part json.RawMessage) error

// Recorder records the conversation of one run of an agent. It first replays the earlier record of the conversation.
// The agent gets the recorder from the context (With). It is safe for concurrent use.
type Recorder struct {
	agent, sandbox          string
	write                   Write
	claimed, sandboxClaimed atomic.Bool

	// Interrupts reports whether the failure err of a call ends the agent's run, because a resumed run can repeat the
	// call. Set it before the recorder is used. If nil, no call does.
	Interrupts func(ctx context.Context, err error) bool
	// Provider is the provider of the agent's model, for Tokens. Set it before the recorder is used.
	Provider string

	mu     sync.Mutex // guards the fields below; held while a part is written, to keep the order
	past   Conversation
	replay bool   // the latest turn's answer must be replayed
	notice string // text for the model's next request
	failed error  // error of write
	ended  error  // error of the interrupting call
	closed bool

	definition string // digest of the agent
}

// New returns a recorder for a run of an agent. sandbox is the name of the run's isolated sandbox, if the agent uses
// one. past is the earlier record of the same run, or nil for a new run.
func New(agent, sandbox string, past *Conversation, write Write) *Recorder {
	r := &Recorder{agent: agent, sandbox: sandbox, write: write}
	if past != nil && past.turns > 0 {
		r.past, r.replay = *past, true
	}
	return r
}

type recorderKey struct{} // *Recorder of an agent's run

// With returns a context for an agent whose run is recorded.
func With(ctx context.Context, r *Recorder) context.Context {
	return context.WithValue(ctx, recorderKey{}, r)
}

// Claim returns the recorder in ctx for a run of an agent, or nil. Only the first run gets the recorder: agents a tool
// of the agent runs are part of the tool's call.
func Claim(ctx context.Context, agent string) *Recorder {
	r, _ := ctx.Value(recorderKey{}).(*Recorder)
	if r == nil || r.agent != agent || !r.claimed.CompareAndSwap(false, true) {
		return nil
	}
	return r
}

// ClaimSandbox returns the recorder in ctx for the sandbox tools of an agent's run, or nil. Only the first call gets
// the recorder, which comes from the agent itself.
func ClaimSandbox(ctx context.Context) *Recorder {
	r, _ := ctx.Value(recorderKey{}).(*Recorder)
	if r == nil || !r.claimed.Load() || !r.sandboxClaimed.CompareAndSwap(false, true) {
		return nil
	}
	return r
}

// Sandbox returns the name of the run's isolated sandbox. All processes of the run use the same name.
func (r *Recorder) Sandbox() string { return r.sandbox }

// Turn returns the number of the latest turn. Without a recorder, it returns 0.
func (r *Recorder) Turn() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.past.turns
}

// Close stops recording. Later results of tools are not recorded. Close returns the error of a Write, or of the
// interrupting call.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return cmp.Or(r.failed, r.ended)
}

// Interrupted reports whether the failure err of a call interrupts the agent's run. Such a call is not recorded.
func (r *Recorder) Interrupted(ctx context.Context, err error) bool {
	if r == nil || r.Interrupts == nil || !r.Interrupts(ctx, err) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = cmp.Or(r.ended, err)
	return true
}

// Progress describes the record of earlier processes.
type Progress struct {
	Messages                  []*ai.Message // messages of the latest turn's model request; nil without a record
	Turns, Calls              int           // answers with tool calls, and calls with a result
	InputTokens, OutputTokens int
	Sandboxes                 []string  // session keys of sandboxes in use at the end; empty for the agent's own
	Recorded                  time.Time // when the latest part was recorded
}

// Progress returns the progress of earlier processes.
func (r *Recorder) Progress() (Progress, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.replay {
		return Progress{}, nil
	}
	c := r.past
	p := Progress{Turns: c.turns, Calls: c.calls, InputTokens: c.input, OutputTokens: c.output,
		Sandboxes: slices.Compact(slices.Sorted(maps.Values(c.sandboxes))), Recorded: c.recorded}
	for _, raw := range c.messages {
		m, err := message(raw)
		if err != nil {
			return Progress{}, err
		}
		p.Messages = append(p.Messages, m)
	}
	return p, nil
}

// Define sets the digest of the agent's whole definition. If the recorded conversation belongs to another definition,
// for example because the prompt was edited, it is not continued. The agent and its record then start from the
// beginning.
func (r *Recorder) Define(ctx context.Context, digest string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.definition = digest
	if !r.replay || r.past.definition == digest {
		return nil
	}
	r.replay = false
	return r.add(ctx, part{Restart: "the agent has changed since its conversation began"})
}

// noticeKey marks messages from WithNotice in their metadata.
const noticeKey = "workcell-notice"

// WithNotice returns p with a last message to the model about a difference from the conversation.
func WithNotice(p *ai.GenerateParams, text string) *ai.GenerateParams {
	m := ai.NewUserTextMessage(text)
	m.Metadata = map[string]any{noticeKey: true}
	req, params := *p.Request, *p
	req.Messages = append(slices.Clip(req.Messages), m)
	params.Request = &req
	return &params
}

// Notice adds text to the model's next request.
func (r *Recorder) Notice(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notice = text
}

// IsNotice reports whether a message comes from WithNotice.
func IsNotice(m *ai.Message) bool { return m != nil && m.Metadata[noticeKey] != nil }

// Hooks returns the hooks that record a Generate call. They must be the outermost hooks of the call, so they record the
// data Genkit uses, and to prevent other hooks from running again for replayed parts.
func (r *Recorder) Hooks() *ai.Hooks {
	return &ai.Hooks{WrapGenerate: r.generate, WrapModel: r.model, WrapTool: r.tool}
}

// generate adds the notice to the conversation after the replayed turn.
func (r *Recorder) generate(ctx context.Context, p *ai.GenerateParams,
	next ai.GenerateNext) (*ai.ModelResponse, error) {
	r.mu.Lock()
	text := r.notice
	if p.Iteration > 0 {
		r.notice = ""
	}
	r.mu.Unlock()
	if p.Iteration > 0 && text != "" {
		p = WithNotice(p, text)
	}
	return next(ctx, p)
}

// model replays the latest answer, or calls the model and records an answer calling tools.
func (r *Recorder) model(ctx context.Context, p *ai.ModelParams, next ai.ModelNext) (*ai.ModelResponse, error) {
	if m, err := r.replayed(p.Request.Tools); m != nil || err != nil {
		return &ai.ModelResponse{Request: p.Request, Message: m, FinishReason: ai.FinishReasonStop,
			Usage: &ai.GenerationUsage{}}, err
	}
	resp, err := next(ctx, p)
	if err != nil || resp == nil || resp.Message == nil || len(resp.ToolRequests()) == 0 {
		return resp, err
	}
	out := *resp
	out.Message = withRefs(resp.Message)
	if err := r.recordTurn(ctx, p.Request, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// replayed returns the latest answer once. All calls in the answer must be calls of offered tools, because Genkit runs
// any registered tool, and other programs may write to the journal.
func (r *Recorder) replayed(offered []*ai.ToolDefinition) (*ai.Message, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.replay {
		return nil, nil
	}
	r.replay = false
	for _, req := range r.past.requests {
		if !slices.ContainsFunc(offered, func(t *ai.ToolDefinition) bool { return t.Name == req.Name }) {
			return nil, fmt.Errorf("%w: it calls %.40q, which the agent may not use", ErrInvalid, req.Name)
		}
	}
	return message(r.past.answer)
}

// withRefs returns the message with a unique reference for each tool call. Genkit would add missing references later,
// and differently in each process.
func withRefs(m *ai.Message) *ai.Message {
	out := *m
	out.Content = make([]*ai.Part, len(m.Content))
	seen := map[string]bool{"": true}
	for i, p := range m.Content {
		if p.IsToolRequest() && p.ToolRequest != nil {
			req, copied := *p.ToolRequest, *p
			if seen[req.Ref] {
				req.Ref = "call-" + rand.Text()
			}
			seen[req.Ref] = true
			copied.ToolRequest = &req
			p = &copied
		}
		out.Content[i] = p
	}
	return &out
}

// recordTurn records an answer and the new messages of its request.
func (r *Recorder) recordTurn(ctx context.Context, req *ai.ModelRequest, resp *ai.ModelResponse) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.past.lost != "" {
		return nil
	}
	before, err := r.past.next()
	if err != nil {
		return r.giveUp(ctx, err.Error())
	}
	t := &turn{Number: r.past.turns + 1}
	if r.past.turns == 0 {
		t.Definition = r.definition
	}
	for i, m := range req.Messages {
		raw, err := json.Marshal(m)
		if err != nil {
			return r.giveUp(ctx, fmt.Sprintf("cannot write a message: %v", err))
		}
		if t.Keep == i && i < len(before) && bytes.Equal(raw, before[i]) {
			t.Keep++
			continue
		}
		t.Messages = append(t.Messages, raw)
	}
	if t.Answer, err = json.Marshal(resp.Message); err != nil {
		return r.giveUp(ctx, fmt.Sprintf("cannot write an answer: %v", err))
	}
	t.InputTokens, t.OutputTokens = Tokens(r.Provider, resp.Usage)
	return r.add(ctx, part{Turn: t})
}

// Tokens returns the input tokens with cached ones, and the output tokens with reasoning. Genkit's plugins for
// Anthropic and Gemini count these tokens separately, other plugins do not.
func Tokens(provider string, u *ai.GenerationUsage) (input, output int) {
	if u == nil {
		return 0, 0
	}
	input, output = u.InputTokens, u.OutputTokens
	switch provider {
	case "anthropic":
		input += u.CachedContentTokens
	case "googleai", "vertexai":
		output += u.ThoughtsTokens
	}
	return max(input, 0), max(output, 0)
}

// tool replays the recorded result of a call, or runs the tool and records the result.
func (r *Recorder) tool(ctx context.Context, p *ai.ToolParams, next ai.ToolNext) (*ai.MultipartToolResponse, error) {
	r.mu.Lock()
	turn, known := r.past.turns, r.past.results[p.Request.Ref]
	r.mu.Unlock()
	if known != nil {
		return known, nil
	}
	resp, err := next(ctx, p)
	if err != nil || resp == nil {
		return resp, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.past.lost != "" || r.past.turns != turn {
		return resp, nil
	}
	if err := r.add(ctx, part{Call: &call{Turn: turn, Ref: p.Request.Ref, Result: resp}}); err != nil {
		return nil, err
	}
	return resp, nil
}

// add records a part or stops recording. The caller must hold r.mu.
func (r *Recorder) add(ctx context.Context, p part) error {
	if r.failed != nil {
		return r.failed // parts after a gap would be useless
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return r.giveUp(ctx, fmt.Sprintf("cannot write a part of it: %v", err))
	}
	if r.past.bytes+len(raw) > MaxBytes {
		return r.giveUp(ctx, fmt.Sprintf("it has more than %d MiB", MaxBytes>>20))
	}
	if err := r.past.Add(raw, time.Now()); err != nil { // an unreadable part must not be written
		return r.giveUp(ctx, err.Error())
	}
	switch err := r.write(ctx, raw); {
	case errors.Is(err, ErrFull):
		return r.giveUp(ctx, "the conversations of the run's running steps exceed the limit")
	case err != nil:
		r.failed = err
		return err
	}
	return nil
}

// giveUp records the end of the recording. The caller must hold r.mu.
func (r *Recorder) giveUp(ctx context.Context, why string) error {
	why = strings.ToValidUTF8(why[:min(len(why), 500)], "")
	raw, err := json.Marshal(part{Lost: why})
	if err == nil {
		err = r.write(ctx, raw)
	}
	if err != nil && !errors.Is(err, ErrFull) {
		r.failed = err
		return err
	}
	r.past = Conversation{lost: why}
	return nil
}
