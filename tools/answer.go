package tools

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/firebase/genkit/go/ai"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/internal/transcript"
)

// parse returns the parsed answer, as described at AgentResult.Output.
func (a *Agent) parse(resp *ai.ModelResponse) (v any, err error) {
	if !a.doc.Meta.HasOutput {
		return jsonObject(resp.Text()), nil
	}
	err = resp.Output(&v)
	if _, isObject := v.(map[string]any); isObject && err == nil {
		v = cmp.Or(decodeObject(resp.Text()), v) // Genkit has rounded large integers
	}
	return v, err
}

var fenced = regexp.MustCompile("(?s)```(?:json|JSON)?[ \t]*\r?\n(.*?)```")

// jsonObject returns text as a JSON object, or the only fenced block of text as a JSON object. It returns nil if
// neither is a JSON object.
func jsonObject(text string) any {
	object, blocks := decodeObject(text), fenced.FindAllStringSubmatch(text, -1)
	if object == nil && len(blocks) == 1 {
		return decodeObject(blocks[0][1])
	}
	return object
}

func decodeObject(text string) any {
	v, _ := expr.DecodeJSON([]byte(text))
	if _, isObject := v.(map[string]any); isObject {
		return expr.Map(v, jsonNumber)
	}
	return nil
}

// jsonNumber returns integers as float64 values, like encoding/json, unless this rounds them.
func jsonNumber(v any) any {
	if n, ok := v.(int64); ok && max(n, -n) <= 1<<53 {
		return float64(n)
	}
	return v
}

// watcher counts the turns, tool calls, and tokens of a run. Its hook for models encloses the file's other
// middlewares, because they can call further models. Its hook for tools is the innermost hook, so it sees only calls
// that are made.
type watcher struct {
	provider string // of the model
	onTool   func(ToolEvent)

	mu                          sync.Mutex // guards the counters, because tools run concurrently
	turns, calls, input, output int
	cached                      int // part of input
}

func (w *watcher) model(ctx context.Context, p *ai.ModelParams, next ai.ModelNext) (*ai.ModelResponse, error) {
	resp, err := next(ctx, p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.turns++
	}
	if resp != nil && resp.Usage != nil {
		input, output := transcript.Tokens(w.provider, resp.Usage)
		w.input, w.output, w.cached = w.input+input, w.output+output, w.cached+resp.Usage.CachedContentTokens
	}
	return resp, err
}

func (w *watcher) tool(ctx context.Context, p *ai.ToolParams, next ai.ToolNext) (*ai.MultipartToolResponse, error) {
	w.mu.Lock()
	w.calls++
	w.mu.Unlock()
	if p.Request.Ref != "" {
		trace.SpanFromContext(ctx).SetAttributes(telemetry.Text(semconv.ToolCallID, p.Request.Ref))
	}
	event := ToolEvent{Tool: p.Tool.Name(), Ref: p.Request.Ref}
	w.tell(event)
	began := time.Now()
	resp, err := next(ctx, p)
	event.Done, event.Duration = true, time.Since(began)
	if resp != nil {
		out, _ := resp.Output.(map[string]any) // converted to JSON by Genkit
		problem, _ := out["error"].(map[string]any)
		event.Failure, _ = problem["code"].(string)
	}
	if err != nil {
		event.Failure = string(toolspec.CodeInternal)
	}
	w.tell(event)
	return resp, err
}

// report records the counters in the metrics and in the span of ctx.
func (w *watcher) report(ctx context.Context, agent string) {
	named := metric.WithAttributes(telemetry.Text(semconv.AgentName, agent))
	telemetry.Counts(semconv.MetricInferenceCalls).Record(ctx, int64(w.turns), named)
	telemetry.Counts(semconv.MetricToolCalls).Record(ctx, int64(w.calls), named)
	trace.SpanFromContext(ctx).SetAttributes(semconv.InputTokens.Int(w.input), semconv.OutputTokens.Int(w.output),
		telemetry.KeyTurns.Int(w.turns), telemetry.KeyToolCalls.Int(w.calls))
}

// Limits for the tool calls reported by a coding agent.
const (
	maxOpenCalls = 1000
	maxCallName  = 256 // bytes
)

// coding returns a handler for a coding agent's events. It sends text to stream, and reports tool calls like the tool
// calls of a model.
func (w *watcher) coding(ctx context.Context, stream ai.ModelStreamCallback) func(executor.Event) {
	type call struct {
		ToolEvent
		began time.Time
	}
	running := map[string]call{}
	return func(e executor.Event) {
		switch e.Kind {
		case executor.KindText:
			if stream != nil && e.Text != "" {
				// A failed listener misses this text.
				_ = stream(ctx, &ai.ModelResponseChunk{Role: ai.RoleModel, Content: []*ai.Part{ai.NewTextPart(e.Text)}})
			}
		case executor.KindToolStart:
			if len(running) == maxOpenCalls || len(e.Tool.ID) > maxCallName || len(e.Tool.Name) > maxCallName {
				return // no coding agent exceeds these limits, but other programs can write to the output
			}
			w.mu.Lock()
			w.calls++
			w.mu.Unlock()
			event := ToolEvent{Tool: e.Tool.Name, Ref: e.Tool.ID}
			if e.Tool.Server != "" {
				event.Tool = e.Tool.Server + "." + e.Tool.Name
			}
			running[e.Tool.ID] = call{event, time.Now()}
			w.tell(event)
		case executor.KindToolEnd:
			ended, ok := running[e.Tool.ID]
			if !ok {
				return
			}
			ended.Done, ended.Duration = true, time.Since(ended.began)
			delete(running, e.Tool.ID)
			if e.Tool.Failed {
				ended.Failure = string(toolspec.CodeToolFailed)
			}
			w.tell(ended.ToolEvent)
		}
	}
}

func (w *watcher) tell(e ToolEvent) {
	if w.onTool != nil {
		w.onTool(e)
	}
}

// addUsage adds the turns and the usage of a coding agent to the counters.
func (w *watcher) addUsage(turns int, u model.Usage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns += cmp.Or(turns, int(u.Requests))
	w.input += int(u.InputTokens)
	w.output += int(u.OutputTokens)
	w.cached += int(u.CacheReadTokens)
}

// describeOutput describes the output format in the messages instead of using the provider's native option, if the
// provider does not support the option together with tools. Gemini models before 3 reject requests with both ("Function
// calling with a response mime type is unsupported"), and Genkit sends both. Genkit still validates the answer against
// the schema. It returns false if it does not change req.
func describeOutput(ctx context.Context, req *ai.ModelRequest) bool {
	if req.Output == nil || len(req.Tools) == 0 || !isGemini(ctx) {
		return false
	}
	if req.Output.Constrained { // otherwise, Genkit has already described it
		text := ""
		for _, f := range ai.DEFAULT_FORMATS {
			if h, err := f.Handler(req.Output.Schema); f.Name() == req.Output.Format && err == nil {
				text = h.Instructions()
			}
		}
		if text == "" {
			return false // a format of the program
		}
		req.Messages = withInstructions(req.Messages, text)
	}
	req.Output = &ai.ModelOutputConfig{}
	return true
}

// withInstructions returns messages with text at the end of the system message.
func withInstructions(messages []*ai.Message, text string) []*ai.Message {
	at := slices.IndexFunc(messages, func(m *ai.Message) bool { return m.Role == ai.RoleSystem })
	if at < 0 {
		return append([]*ai.Message{ai.NewSystemTextMessage(text)}, messages...)
	}
	m, out := *messages[at], slices.Clone(messages)
	m.Content = append(slices.Clone(m.Content), ai.NewTextPart(text))
	out[at] = &m
	return out
}
