package otelgenai_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/firebase/genkit/go/ai"
	aix "github.com/firebase/genkit/go/ai/exp"
	"github.com/firebase/genkit/go/ai/exp/localstore"
	"github.com/firebase/genkit/go/genkit"
	genkitx "github.com/firebase/genkit/go/genkit/exp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/otelgenai"
)

// TestGenkit runs a flow, a model, and tools of Genkit. It verifies the exported spans with and without contents.
func TestGenkit(t *testing.T) {
	dropped, kept := tracetest.NewInMemoryExporter(), tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(otelgenai.NewProcessor(sdktrace.NewSimpleSpanProcessor(dropped), otelgenai.Options{})),
		sdktrace.WithSpanProcessor(otelgenai.NewProcessor(sdktrace.NewSimpleSpanProcessor(kept), otelgenai.Options{Content: true, MaxLength: 300})))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider) // Genkit uses the global provider
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	useGenkit(t)

	byName := func(e *tracetest.InMemoryExporter) map[string]tracetest.SpanStub {
		spans := map[string]tracetest.SpanStub{}
		for _, s := range e.GetSpans() {
			spans[s.Name] = s
		}
		return spans
	}
	spans, contents := byName(dropped), byName(kept)
	want := map[string]string{
		"chat gemini-2.5-flash": "gen_ai.operation.name=chat gen_ai.provider.name=gcp.gemini gen_ai.request.model=gemini-2.5-flash gen_ai.response.finish_reasons=[\"stop\"] gen_ai.usage.input_tokens=7 gen_ai.usage.output_tokens=5",
		"execute_tool look":     "gen_ai.operation.name=execute_tool gen_ai.tool.name=look gen_ai.tool.type=function",
		"execute_tool fail":     "gen_ai.operation.name=execute_tool gen_ai.tool.name=fail gen_ai.tool.type=function",
		"invoke_workflow talk":  "gen_ai.agent.name=talk gen_ai.operation.name=invoke_workflow",
	}
	for name, attributes := range want {
		s, ok := spans[name]
		if !ok {
			t.Errorf("there is no span %s among %q", name, slices.Sorted(maps.Keys(spans)))
			continue
		}
		if got := genAI(s); got != attributes {
			t.Errorf("%s has\n%s, want\n%s", name, got, attributes)
		}
	}
	if kind := spans["chat gemini-2.5-flash"].SpanKind; kind != trace.SpanKindClient {
		t.Errorf("the call of the model is of kind %s", kind)
	}
	if text := fmt.Sprintf("%+v", dropped.GetSpans()); strings.Contains(text, "hunter2") {
		t.Errorf("a secret left the process: %s", text)
	}
	for name, key := range map[string]attribute.Key{
		"chat gemini-2.5-flash": semconv.InputMessages, "execute_tool look": semconv.ToolArguments,
	} {
		if got := value(contents[name], key); !strings.Contains(got, "hunter2") || len(got) > 300 {
			t.Errorf("%s of %s is %q", key, name, got)
		}
	}
}

// useGenkit runs a flow with a call of a model, which first calls two tools. All of them handle a secret.
func useGenkit(t *testing.T) {
	t.Helper()
	g := genkit.Init(t.Context())
	type input struct {
		Where string `json:"where"`
	}
	look := genkit.DefineTool(g, "look", "looks", func(_ *ai.ToolContext, in input) (string, error) { return "seen: " + in.Where, nil })
	fail := genkit.DefineTool(g, "fail", "fails", func(_ *ai.ToolContext, in input) (string, error) { return "", errors.New("no: " + in.Where) })
	calls := 0
	genkit.DefineModelAction(g, "googleai/gemini-2.5-flash", &ai.ModelOptions{Supports: &ai.ModelSupports{Tools: true, Multiturn: true}},
		func(_ context.Context, r *ai.ModelRequest, _ any, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			calls++
			part := ai.NewTextPart("done " + strings.Repeat("é", 400))
			if name := []string{"look", "fail", ""}[(calls-1)%3]; name != "" && calls < 3 {
				part = ai.NewToolRequestPart(&ai.ToolRequest{Name: name, Input: map[string]any{"where": "hunter2"}})
			}
			return &ai.ModelResponse{Request: r, Message: ai.NewModelMessage(part), FinishReason: ai.FinishReasonStop,
				Usage: &ai.GenerationUsage{InputTokens: 7, OutputTokens: 5}}, nil
		})
	flow := genkit.DefineFlow(g, "talk", func(ctx context.Context, secret string) (string, error) {
		ask := func() (*ai.ModelResponse, error) {
			return genkit.Generate(ctx, g, ai.WithModelName("googleai/gemini-2.5-flash"), ai.WithPrompt(secret), ai.WithTools(look, fail))
		}
		if _, err := ask(); err == nil {
			t.Error("the failed tool did not cause an error")
		}
		r, err := ask()
		if err != nil {
			return "", err
		}
		return r.Text(), nil
	})
	if _, err := flow.Run(t.Context(), "hunter2"); err != nil {
		t.Fatal(err)
	}
}

// genAI returns the sorted attributes of the conventions.
func genAI(s tracetest.SpanStub) string {
	var out []string
	for _, kv := range s.Attributes {
		if strings.HasPrefix(string(kv.Key), "gen_ai.") {
			out = append(out, string(kv.Key)+"="+kv.Value.String())
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func value(s tracetest.SpanStub, key attribute.Key) string {
	for _, kv := range s.Attributes {
		if kv.Key == key {
			return kv.Value.AsString()
		}
	}
	return ""
}

// TestOwnSpans: spans with the conventions' attributes keep them, and spans of other programs keep their names.
func TestOwnSpans(t *testing.T) {
	t.Parallel()
	memory := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(otelgenai.NewProcessor(sdktrace.NewSimpleSpanProcessor(memory), otelgenai.Options{MaxLength: 5})))
	_, s := provider.Tracer("x").Start(t.Context(), "mine")
	s.SetAttributes(semconv.OperationName.String("chat"), attribute.String("genkit:name", "n"), attribute.String("genkit:metadata:subtype", "tool"), attribute.String("long", "ééé"))
	s.RecordError(errors.New("secret"))
	s.End()
	_, s = provider.Tracer("x").Start(t.Context(), "plain")
	s.End()
	got := memory.GetSpans()
	if got[0].Name != "mine" || genAI(got[0]) != "gen_ai.operation.name=chat" || value(got[0], "long") != "éé" {
		t.Errorf("the span with attributes became %+v", got[0])
	}
	if len(got[0].Events) != 1 || len(got[0].Events[0].Attributes) != 1 {
		t.Errorf("the event has %+v", got[0].Events)
	}
	if got[1].Name != "plain" || len(got[1].Attributes) != 0 {
		t.Errorf("the other span became %+v", got[1])
	}
}

// TestConversationIDs: no span contains the ids with which a client of a Genkit agent continues a conversation.
func TestConversationIDs(t *testing.T) {
	memory, raw := tracetest.NewInMemoryExporter(), tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(raw),
		sdktrace.WithSpanProcessor(otelgenai.NewProcessor(sdktrace.NewSimpleSpanProcessor(memory), otelgenai.Options{})))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	g := genkit.Init(t.Context(), genkit.WithExperimental())
	agent := genkitx.DefineCustomAgent(g, "chat", func(ctx context.Context, _ aix.Responder, sess *aix.SessionRunner[any]) (*aix.AgentResult, error) {
		return &aix.AgentResult{}, sess.Run(ctx, func(context.Context, *aix.AgentInput) (*aix.TurnResult, error) { return &aix.TurnResult{}, nil })
	}, aix.WithSessionStore(localstore.NewInMemorySessionStore[any]()))
	out, err := agent.RunText(t.Context(), "hello", aix.WithSessionID[any]("hunter2"))
	if err != nil || out.SnapshotID == "" {
		t.Fatalf("%+v, %v", out, err)
	}
	for _, id := range []string{"hunter2", out.SnapshotID} {
		if text := fmt.Sprintf("%+v", raw.GetSpans()); !strings.Contains(text, id) {
			t.Errorf("Genkit does not record %s", id)
		}
		if text := fmt.Sprintf("%+v", memory.GetSpans()); strings.Contains(text, id) {
			t.Errorf("%s left the process: %s", id, text)
		}
	}
	if !slices.ContainsFunc(memory.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name == "invoke_agent chat" }) {
		t.Error("there is no span of the agent")
	}
}

// recorder is a processor that exports nothing and records names.
type recorder struct{ began, ended []string }

func (r *recorder) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	r.began = append(r.began, s.Name())
}
func (r *recorder) OnEnd(s sdktrace.ReadOnlySpan)  { r.ended = append(r.ended, s.Name()) }
func (*recorder) Shutdown(context.Context) error   { return nil }
func (*recorder) ForceFlush(context.Context) error { return nil }

// TestOwnProcessor: any processor can be wrapped, without a limit for texts, and an unwrapped one gets the original
// spans.
func TestOwnProcessor(t *testing.T) {
	t.Parallel()
	behind, beside := &recorder{}, &recorder{}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(otelgenai.NewProcessor(behind, otelgenai.Options{MaxLength: -1})), sdktrace.WithSpanProcessor(beside))
	_, s := provider.Tracer("x").Start(t.Context(), "look")
	s.SetAttributes(attribute.String("genkit:name", "look"), attribute.String("genkit:metadata:subtype", "tool"))
	s.End()
	got := fmt.Sprint(behind.began, behind.ended, beside.began, beside.ended)
	if want := "[look] [execute_tool look] [look] [look]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestCaptureContent(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"": false, "NO_CONTENT": false, "EVENT_ONLY": false, "SPAN_ONLY": true, "span_and_event": true, "true": true, "false": false} {
		if got := otelgenai.CaptureContent(value); got != want {
			t.Errorf("%q is %t", value, got)
		}
	}
}
