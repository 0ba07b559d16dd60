// Package otelgenai gives the spans of a Genkit program the names and
// attributes of OpenTelemetry's conventions for generative AI, so that Jaeger,
// and whatever else knows these, shows its models, tools and agents as such.
//
// Genkit for Go records spans with attributes of its own. [NewProcessor] is put
// before the processor that a program has, the one that exports for most:
//
//	sdktrace.WithSpanProcessor(otelgenai.NewProcessor(sdktrace.NewBatchSpanProcessor(exporter), otelgenai.Options{}))
//
// Each processor that a provider has gets the spans as they are unless it is behind one of these: wrap all of them.
// Nothing else of the program changes. The spans that carry gen_ai.operation.name already are left as they are, but for
// contents: a program that has a span of its own around a flow sets it on Genkit's span, empty, and there is one
// workflow, not two.
//
// The conventions are those of open-telemetry/semantic-conventions-genai in release v0.1.0; they are in development.
// With Options.OldNames, names that this release replaced are emitted as well.
package otelgenai

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// CaptureVariable is the environment variable by which programs are told to
// record contents. SPAN_ONLY and SPAN_AND_EVENT, and true, mean Options.Content;
// NO_CONTENT, EVENT_ONLY and everything else do not: there are no events with contents.
const CaptureVariable = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

// CaptureContent reports whether the value of CaptureVariable asks for contents.
func CaptureContent(value string) bool {
	return slices.Contains([]string{"true", "span_only", "span_and_event"}, strings.ToLower(value))
}

// Options refine NewProcessor.
type Options struct {
	// Content keeps prompts, answers, the arguments and results of tools, and
	// the texts of errors. They may hold secrets, and are dropped without it.
	Content bool
	// MaxLength is the longest text attribute in bytes; zero is 4,096. A
	// provider's own limit cuts before tokens can be read, so leave that without
	// one.
	MaxLength int
	// OldNames also emits names that the release replaced, such as gen_ai.workflow.name. The next release of this module
	// removes it.
	OldNames bool
}

// OptInVariable is the environment variable by which programs choose conventions, as a list. The value gen_ai/dup means
// Options.OldNames.
const OptInVariable = "OTEL_SEMCONV_STABILITY_OPT_IN"

// KeepOldNames reports whether the value of OptInVariable asks for old names.
func KeepOldNames(value string) bool {
	return slices.Contains(strings.Split(strings.ReplaceAll(value, " ", ""), ","), "gen_ai/dup")
}

// NewProcessor returns a processor that hands spans that end on to next as the
// conventions want them. What they held before is in nobody's queue then. Of a
// span that begins next gets the original, whose attributes it must not export.
func NewProcessor(next sdktrace.SpanProcessor, o Options) sdktrace.SpanProcessor {
	o.MaxLength = cmp.Or(o.MaxLength, 4096)
	return &processor{next, o}
}

type processor struct {
	sdktrace.SpanProcessor // begins, flushes and ends with it
	options                Options
}

// OnEnd hands on a span as the conventions want it.
func (p *processor) OnEnd(s sdktrace.ReadOnlySpan) {
	p.SpanProcessor.OnEnd(p.convert(s))
}

// span is another view of a span.
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

// translate sets what the conventions have for an action of Genkit.
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
		s.set(semconv.ToolType.String("function"), semconv.ToolArguments.String(get("genkit:input")), semconv.ToolResult.String(get("genkit:output")))
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

// operation names the span by what is done and with what.
func (s *span) operation(operation string, key attribute.Key, name string) {
	s.name = operation + " " + name
	s.set(semconv.OperationName.String(operation), key.String(name))
}

// model describes a call of a model, whose name in Genkit begins with its plugin's.
func (s *span) model(operation, name string) {
	plugin, model, ok := strings.Cut(name, "/")
	if !ok {
		plugin, model = "", name
	}
	s.operation(operation, semconv.RequestModel, model)
	s.kind = trace.SpanKindClient
	s.set(semconv.ProviderName.String(semconv.Provider(plugin)))
}

// response sets what a model's response says beside its contents.
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
		return // failed, or cut by a limit of the provider
	}
	reason := r.FinishReason
	for _, part := range r.Message.Content {
		if len(part.ToolRequest) > 0 { // Genkit has no reason of its own for it
			reason = "tool_calls"
		}
	}
	if reason != "" {
		s.set(semconv.FinishReasons.StringSlice([]string{reason}))
	}
	for key, n := range map[attribute.Key]int{semconv.InputTokens: r.Usage.Input, semconv.OutputTokens: r.Usage.Output, semconv.CachedTokens: r.Usage.Cached, semconv.ThinkingTokens: r.Usage.Thoughts} {
		if n > 0 {
			s.set(key.Int(n))
		}
	}
}

// messages sets the contents of a call, as Genkit has them.
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

// keep returns the attributes that may leave the process, cut to the longest.
func (p *processor) keep(in []attribute.KeyValue) []attribute.KeyValue {
	out := make([]attribute.KeyValue, 0, len(in))
	for _, kv := range in {
		if continues(kv.Key) || !p.options.Content && holdsContent(kv.Key) || kv.Key == semconv.OperationName && kv.Value.AsString() == "" {
			continue
		}
		if v := kv.Value; v.Type() == attribute.STRING && len(v.AsString()) > p.options.MaxLength {
			kv = kv.Key.String(cut(v.AsString(), p.options.MaxLength))
		}
		out = append(out, kv)
	}
	return out
}

// continues reports whether an attribute is an id of Genkit's by which a client
// continues a conversation: it may have chosen it, and who else knows it can do so, too.
func continues(key attribute.Key) bool {
	return key == "genkit:metadata:agent:sessionId" || key == "genkit:metadata:agent:snapshotId"
}

// holdsContent reports whether an attribute quotes what went through a call: of
// Genkit, of the conventions or of OpenTelemetry's events of errors.
func holdsContent(key attribute.Key) bool {
	switch key {
	case "genkit:input", "genkit:output", "genkit:init", "genkit:error", "exception.message", "exception.stacktrace",
		semconv.InputMessages, semconv.OutputMessages, semconv.ToolArguments, semconv.ToolResult, "gen_ai.system_instructions", "gen_ai.tool.definitions":
		return true
	}
	return strings.HasPrefix(string(key), "genkit:metadata:context")
}

// cut returns the first n bytes of s, less half a character.
func cut(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
