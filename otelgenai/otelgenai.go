// Package otelgenai converts the spans of a Genkit program to OpenTelemetry's semantic conventions for generative AI.
// Tools that support these conventions, for example Jaeger, then recognize the program's models, tools, and agents.
//
// Genkit for Go records spans with proprietary attributes. Put [NewProcessor] before the program's existing processor,
// which usually exports the spans:
//
//	sdktrace.WithSpanProcessor(otelgenai.NewProcessor(sdktrace.NewBatchSpanProcessor(exporter), otelgenai.Options{}))
//
// An unwrapped processor of the provider receives the original spans, so wrap all of them. The rest of the program does
// not change. If a span already has the attribute gen_ai.operation.name, only the contents are removed. To avoid
// counting a workflow twice, a program with a span around a flow can set this attribute to "" on Genkit's span.
//
// The conventions are those of open-telemetry/semantic-conventions-genai in release v0.1.0; they are in development.
// With Options.OldNames, the names replaced by this release are emitted as well.
package otelgenai

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// CaptureVariable is the environment variable that makes programs record contents. SPAN_ONLY, SPAN_AND_EVENT, and true
// set Options.Content. NO_CONTENT, EVENT_ONLY, and all other values do not, because no events with contents exist.
const CaptureVariable = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

// CaptureContent reports whether the value of CaptureVariable enables the recording of contents.
func CaptureContent(value string) bool {
	return slices.Contains([]string{"true", "span_only", "span_and_event"}, strings.ToLower(value))
}

// Options are options for NewProcessor.
type Options struct {
	// Content keeps prompts, answers, tool arguments and results, and error texts. They may contain secrets. If false,
	// they are removed.
	Content bool
	// MaxLength is the maximum length of a text attribute in bytes. If zero, it is 4,096. If negative, there is no limit.
	// Do not set a limit in the provider, because such a limit truncates the text before tokens can be read from it.
	MaxLength int
	// OldNames also emits names replaced by the release, such as gen_ai.workflow.name. The next release of this module
	// removes it.
	OldNames bool
}

// NewProcessor returns a processor that converts ended spans to the conventions and passes them to next. Removed
// contents never reach the queue of next. When a span starts, next receives the original span, whose attributes it must
// not export.
func NewProcessor(next sdktrace.SpanProcessor, o Options) sdktrace.SpanProcessor {
	o.MaxLength = cmp.Or(o.MaxLength, 4096)
	return &processor{next, o}
}

type processor struct {
	sdktrace.SpanProcessor // OnStart, ForceFlush, and Shutdown
	options                Options
}

// OnEnd passes the converted span to the next processor.
func (p *processor) OnEnd(s sdktrace.ReadOnlySpan) {
	p.SpanProcessor.OnEnd(p.convert(s))
}

// span is a converted view of a span.
type span struct {
	sdktrace.ReadOnlySpan
	name       string
	kind       trace.SpanKind
	attributes []attribute.KeyValue
	events     []sdktrace.Event
	status     sdktrace.Status
}

func (s *span) Name() string                     { return s.name }
func (s *span) SpanKind() trace.SpanKind         { return s.kind }
func (s *span) Attributes() []attribute.KeyValue { return s.attributes }
func (s *span) Events() []sdktrace.Event         { return s.events }
func (s *span) Status() sdktrace.Status          { return s.status }

func (p *processor) convert(in sdktrace.ReadOnlySpan) sdktrace.ReadOnlySpan {
	out := &span{ReadOnlySpan: in, name: in.Name(), kind: in.SpanKind(), status: in.Status()}
	for _, ev := range in.Events() {
		ev.Attributes = p.keep(ev.Attributes)
		out.events = append(out.events, ev)
	}
	if !p.options.Content {
		out.status.Description = ""
	}
	attributes := in.Attributes()
	out.translate(attributes)
	out.attributes = p.keep(append(out.attributes, attributes...))
	if set := attribute.NewSet(out.attributes...); p.options.OldNames {
		operation, _ := set.Value(semconv.OperationName)
		if name, ok := set.Value(semconv.AgentName); ok && operation.AsString() == semconv.InvokeWorkflow {
			out.attributes = append(out.attributes, attribute.KeyValue{Key: semconv.OldWorkflowName, Value: name})
		}
	}
	return out
}

// translate sets the attributes of the conventions for a Genkit action.
func (s *span) translate(in []attribute.KeyValue) {
	get := func(key string) string {
		for _, kv := range in {
			if string(kv.Key) == key {
				return kv.Value.String()
			}
		}
		return ""
	}
	name := get("genkit:name")
	if name == "" || slices.ContainsFunc(in, func(kv attribute.KeyValue) bool { return kv.Key == semconv.OperationName }) {
		return
	}
	switch get("genkit:metadata:subtype") {
	case "model", "background-model":
		s.model(semconv.Chat, name)
		s.response(get("genkit:output"))
		s.messages(get("genkit:input"), get("genkit:output"))
	case "embedder":
		s.model(semconv.Embeddings, name)
	case "tool", "tool.v2":
		s.operation(semconv.ExecuteTool, semconv.ToolName, name)
		s.set(semconv.ToolType.String("function"), semconv.ToolArguments.String(get("genkit:input")),
			semconv.ToolResult.String(get("genkit:output")))
		if program := get(string(semconv.ProcessName)); program != "" {
			s.name += " " + program
		}
	case "flow":
		s.operation(semconv.InvokeWorkflow, semconv.AgentName, name)
	case "agent":
		s.operation(semconv.InvokeAgent, semconv.AgentName, name)
	}
}

func (s *span) set(attributes ...attribute.KeyValue) {
	for _, kv := range attributes {
		if kv.Value.Type() != attribute.STRING || kv.Value.AsString() != "" {
			s.attributes = append(s.attributes, kv)
		}
	}
}

// operation sets the name of the span, for example "execute_tool search".
func (s *span) operation(operation string, key attribute.Key, name string) {
	s.name = operation + " " + name
	s.set(semconv.OperationName.String(operation), key.String(name))
}

// model describes a model call. In Genkit, a model's name begins with the plugin's name.
func (s *span) model(operation, name string) {
	plugin, model, ok := strings.Cut(name, "/")
	if !ok {
		plugin, model = "", name
	}
	s.operation(operation, semconv.RequestModel, model)
	s.kind = trace.SpanKindClient
	s.set(semconv.ProviderName.String(semconv.Provider(plugin)))
}

// response sets the attributes of a model's response, except the contents.
func (s *span) response(output string) {
	var r struct {
		FinishReason string `json:"finishReason"`
		Message      struct {
			Content []struct {
				ToolRequest json.RawMessage `json:"toolRequest"`
			} `json:"content"`
		} `json:"message"`
		Usage struct {
			Input    int `json:"inputTokens"`
			Output   int `json:"outputTokens"`
			Cached   int `json:"cachedContentTokens"`
			Thoughts int `json:"thoughtsTokens"`
		} `json:"usage"`
	}
	if json.Unmarshal([]byte(output), &r) != nil {
		return // failed, or truncated by a limit of the provider
	}
	reason := r.FinishReason
	for _, part := range r.Message.Content {
		if len(part.ToolRequest) > 0 { // Genkit has no finish reason for tool calls
			reason = "tool_calls"
		}
	}
	if reason != "" {
		s.set(semconv.FinishReasons.StringSlice([]string{reason}))
	}
	for key, n := range map[attribute.Key]int{
		semconv.InputTokens: r.Usage.Input, semconv.OutputTokens: r.Usage.Output,
		semconv.CachedTokens: r.Usage.Cached, semconv.ThinkingTokens: r.Usage.Thoughts,
	} {
		if n > 0 {
			s.set(key.Int(n))
		}
	}
}

// messages sets the contents of a call in Genkit's format.
func (s *span) messages(input, output string) {
	var request struct {
		Messages json.RawMessage `json:"messages"`
	}
	var response struct {
		Message json.RawMessage `json:"message"`
	}
	if json.Unmarshal([]byte(input), &request) == nil {
		s.set(semconv.InputMessages.String(string(request.Messages)))
	}
	if json.Unmarshal([]byte(output), &response) == nil && len(response.Message) > 0 {
		s.set(semconv.OutputMessages.String("[" + string(response.Message) + "]"))
	}
}

// keep returns the exportable attributes, truncated to the maximum length.
func (p *processor) keep(in []attribute.KeyValue) []attribute.KeyValue {
	out := make([]attribute.KeyValue, 0, len(in))
	for _, kv := range in {
		if continues(kv.Key) || !p.options.Content && holdsContent(kv.Key) || kv.Key == semconv.OperationName &&
			kv.Value.AsString() == "" {
			continue
		}
		v, most := kv.Value, p.options.MaxLength
		if v.Type() == attribute.STRING && most >= 0 && len(v.AsString()) > most {
			kv = kv.Key.String(strings.ToValidUTF8(v.AsString()[:most], ""))
		}
		out = append(out, kv)
	}
	return out
}

// continues reports whether an attribute is a Genkit id with which a client continues a conversation. The id must stay
// secret, because other clients with the id can also continue the conversation.
func continues(key attribute.Key) bool {
	return key == "genkit:metadata:agent:sessionId" || key == "genkit:metadata:agent:snapshotId"
}

// holdsContent reports whether an attribute quotes the contents of a call: an attribute of Genkit, of the conventions,
// or of OpenTelemetry's error events.
func holdsContent(key attribute.Key) bool {
	switch key {
	case "genkit:input", "genkit:output", "genkit:init", "genkit:error", "exception.message", "exception.stacktrace",
		semconv.InputMessages, semconv.OutputMessages, semconv.ToolArguments, semconv.ToolResult,
		"gen_ai.system_instructions", "gen_ai.tool.definitions":
		return true
	}
	return strings.HasPrefix(string(key), "genkit:metadata:context")
}
