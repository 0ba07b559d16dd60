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

// ErrFull is what a Write function returns when there is no room for a part. The conversation goes on, without a
// record.
var ErrFull = errors.New("record limit of conversations reached")

// Write stores a part. It must have done so when it returns. A failure other than ErrFull ends the conversation.
type Write func(ctx context.Context, part json.RawMessage) error

// Recorder records the conversation of one run of an agent, and begins by playing back what was recorded of it before.
// It reaches the agent in its context (With). Its methods may be called concurrently.
type Recorder struct {
	agent, sandbox          string
	write                   Write
	claimed, sandboxClaimed atomic.Bool

	// Interrupts reports whether a call that failed with err ends the agent's run, because a resumed run can make it
	// again. It is set before the recorder is used; nil for never.
	Interrupts func(ctx context.Context, err error) bool

	mu     sync.Mutex // guards what follows; held while a part is written, so that they come in order
	past   Conversation
	replay bool   // the latest turn's answer is to be played back
	notice string // what the model is to know when it is asked next
	failed error  // of write
	ended  error  // of the call that interrupted the run
	closed bool

	definition string // digest of the agent
}

// New returns a recorder for a run of an agent. sandbox is the name of the isolated sandbox of the run, should the
// agent have one. past is what was recorded of the same run before; nil for a new one.
func New(agent, sandbox string, past *Conversation, write Write) *Recorder {
	r := &Recorder{agent: agent, sandbox: sandbox, write: write}
	if past != nil && past.turns > 0 {
		r.past, r.replay = *past, true
	}
	return r
}

type recorderKey struct{} // holds the *Recorder of an agent's run

// With returns a context for the agent whose run is recorded.
func With(ctx context.Context, r *Recorder) context.Context {
	return context.WithValue(ctx, recorderKey{}, r)
}

// Claim returns the recorder that ctx has for a run of an agent, nil when it has none. It is there for the first run
// only: what a tool of an agent runs is part of that tool's call.
func Claim(ctx context.Context, agent string) *Recorder {
	r, _ := ctx.Value(recorderKey{}).(*Recorder)
	if r == nil || r.agent != agent || !r.claimed.CompareAndSwap(false, true) {
		return nil
	}
	return r
}

// ClaimSandbox returns the recorder of the run of an agent that ctx belongs to, for the tools of its sandbox, nil when
// there is none. It is there for the first of them only, those of the agent itself.
func ClaimSandbox(ctx context.Context) *Recorder {
	r, _ := ctx.Value(recorderKey{}).(*Recorder)
	if r == nil || !r.claimed.Load() || !r.sandboxClaimed.CompareAndSwap(false, true) {
		return nil
	}
	return r
}

// Sandbox returns the name of the isolated sandbox of the run, which is the same in every process that continues it.
func (r *Recorder) Sandbox() string { return r.sandbox }

// Turn returns the number of the latest turn; 0 without a recorder.
func (r *Recorder) Turn() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.past.turns
}

// Close ends the recording. A tool that returns later is not recorded. Close returns the failure of a Write, or of the
// call that interrupted the run.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return cmp.Or(r.failed, r.ended)
}

// Interrupted reports whether a call that failed with err interrupts the agent's run. The call is not recorded.
func (r *Recorder) Interrupted(ctx context.Context, err error) bool {
	if r == nil || r.Interrupts == nil || !r.Interrupts(ctx, err) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = cmp.Or(r.ended, err)
	return true
}

// Progress is what was recorded before this process.
type Progress struct {
	Messages                  []*ai.Message // what the model was asked with for the latest turn; nil when nothing was recorded
	Turns, Calls              int           // answers that call tools, and calls that have a result
	InputTokens, OutputTokens int
	Sandboxes                 []string  // session keys of the sandboxes that were in use at the end, empty for the agent's own
	Recorded                  time.Time // when the latest part was
}

// Progress returns what was recorded before this process.
func (r *Recorder) Progress() (Progress, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.replay {
		return Progress{}, nil
	}
	c := r.past
	p := Progress{Turns: c.turns, Calls: c.calls, InputTokens: c.input, OutputTokens: c.output, Sandboxes: slices.Compact(slices.Sorted(maps.Values(c.sandboxes))), Recorded: c.recorded}
	for _, raw := range c.messages {
		m, err := message(raw)
		if err != nil {
			return Progress{}, err
		}
		p.Messages = append(p.Messages, m)
	}
	return p, nil
}

// Define tells the recorder what the agent is: digest stands for all that makes it. The conversation of another agent,
// such as one whose prompt was edited since, is not continued: this one begins at its start, and so does its record.
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

// noticeKey marks messages of Notice in their metadata.
const noticeKey = "workcell-notice"

// Notice returns a message by which a model learns what is not as its conversation says.
func Notice(text string) *ai.Message {
	m := ai.NewUserTextMessage(text)
	m.Metadata = map[string]any{noticeKey: true}
	return m
}

// Notice has the model read text before its next answer.
func (r *Recorder) Notice(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notice = text
}

// IsNotice reports whether a message is one of Notice.
func IsNotice(m *ai.Message) bool { return m != nil && m.Metadata[noticeKey] != nil }

// Hooks returns what records a Generate call. They must be the outermost of the call, so that what is recorded is what
// Genkit works with, and what is played back runs no other hook again.
func (r *Recorder) Hooks() *ai.Hooks {
	return &ai.Hooks{WrapGenerate: r.generate, WrapModel: r.model, WrapTool: r.tool}
}

// generate adds the notice to the conversation, behind the turn that was played back.
func (r *Recorder) generate(ctx context.Context, p *ai.GenerateParams, next ai.GenerateNext) (*ai.ModelResponse, error) {
	r.mu.Lock()
	text := r.notice
	if p.Iteration > 0 {
		r.notice = ""
	}
	r.mu.Unlock()
	if p.Iteration > 0 && text != "" {
		req, params := *p.Request, *p
		req.Messages = append(slices.Clip(req.Messages), Notice(text))
		params.Request = &req
		p = &params
	}
	return next(ctx, p)
}

// model plays back the latest answer, or asks the model and records an answer that calls tools.
func (r *Recorder) model(ctx context.Context, p *ai.ModelParams, next ai.ModelNext) (*ai.ModelResponse, error) {
	if m, err := r.replayed(p.Request.Tools); m != nil || err != nil {
		return &ai.ModelResponse{Request: p.Request, Message: m, FinishReason: ai.FinishReasonStop, Usage: &ai.GenerationUsage{}}, err
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

// replayed returns the latest answer, once. Genkit runs any registered tool, and others may write to the journal, so
// all calls must be of offered tools.
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

// withRefs returns the message with a reference of its own for each tool call. Genkit would add those that are missing,
// but later, and others in each process.
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

// recordTurn records an answer with what of the question is new.
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
	if resp.Usage != nil {
		t.InputTokens, t.OutputTokens = max(resp.Usage.InputTokens, 0), max(resp.Usage.OutputTokens, 0)
	}
	return r.add(ctx, part{Turn: t})
}

// tool plays back the recorded result of a call, or runs the tool and records what it returned.
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

// add records a part, or gives up recording; r.mu is held.
func (r *Recorder) add(ctx context.Context, p part) error {
	if r.failed != nil {
		return r.failed // what comes behind a gap would be of no use
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return r.giveUp(ctx, fmt.Sprintf("cannot write a part of it: %v", err))
	}
	if r.past.bytes+len(raw) > MaxBytes {
		return r.giveUp(ctx, fmt.Sprintf("it has more than %d MiB", MaxBytes>>20))
	}
	if err := r.past.Add(raw, time.Now()); err != nil { // what could not be read must not be written
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

// giveUp records that the rest of the conversation will not be; r.mu is held.
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
