package otelgenai_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/otelgenai"
)

// TestSpanAroundAFlow: a flow inside a program's span does not count as a second workflow.
func TestSpanAroundAFlow(t *testing.T) {
	t.Parallel()
	memory := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(otelgenai.NewProcessor(sdktrace.NewSimpleSpanProcessor(memory), otelgenai.Options{})))
	_, span := provider.Tracer("x").Start(t.Context(), "flow")
	span.SetAttributes(attribute.String("genkit:name", "flow"), attribute.String("genkit:metadata:subtype", "flow"), semconv.OperationName.String(""))
	span.End()
	got := memory.GetSpans()[0]
	if got.Name != "flow" || len(got.Attributes) != 2 {
		t.Errorf("%s %v", got.Name, got.Attributes)
	}
}

// TestMetrics: the spans of one run are measured, each under what it is, without ids. Old names are added on request.
func TestMetrics(t *testing.T) {
	t.Parallel()
	chat := "gen_ai.operation.name=chat,gen_ai.provider.name=openai,gen_ai.request.model=gpt"
	names := []string{
		"gen_ai.client.inference.duration 1 " + chat,
		"gen_ai.client.inference.operation.input_tokens 5 " + chat,
		"gen_ai.client.inference.operation.output_tokens 2 " + chat,
		"gen_ai.client.inference.usage.cache_read.input_tokens 3 " + chat + ",gen_ai.token.modality=unknown",
		"gen_ai.client.inference.usage.input_tokens 5 " + chat + ",gen_ai.token.modality=unknown",
		"gen_ai.client.inference.usage.output_tokens 2 " + chat + ",gen_ai.token.modality=unknown",
		"gen_ai.execute_tool.duration 1 gen_ai.operation.name=execute_tool,gen_ai.tool.name=look",
		"gen_ai.invoke_agent.duration 1 gen_ai.agent.name=a,gen_ai.operation.name=invoke_agent",
		"gen_ai.invoke_agent.duration 1 gen_ai.agent.name=w,gen_ai.operation.name=invoke_workflow",
	}
	workflow := "gen_ai.agent.name=w,gen_ai.operation.name=invoke_workflow,gen_ai.workflow.name=w"
	both := slices.Concat(names[:len(names)-1], []string{
		"gen_ai.invoke_agent.duration 1 " + workflow, "gen_ai.invoke_workflow.duration 1 " + workflow,
		"gen_ai.client.operation.duration 1 " + chat,
		"gen_ai.client.token.usage 2 " + chat + ",gen_ai.token.type=output", "gen_ai.client.token.usage 5 " + chat + ",gen_ai.token.type=input",
	})
	slices.Sort(both)
	for old, want := range map[bool][]string{false: names, true: both} {
		if diff := cmp.Diff(want, measured(t, otelgenai.Options{OldNames: old})); diff != "" {
			t.Errorf("metrics, with old names: %v (-want +got)\n%s", old, diff)
		}
	}
}

// measured returns the metrics of the spans of one run, sorted, each with value and attributes.
func measured(t *testing.T, o otelgenai.Options) (got []string) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(otelgenai.NewProcessor(sdktrace.NewSimpleSpanProcessor(otelgenai.NewMetrics(meters, o)), o)))
	for _, attrs := range [][]attribute.KeyValue{
		{attribute.String("genkit:name", "openai/gpt"), attribute.String("genkit:metadata:subtype", "model"),
			attribute.String("genkit:output", `{"usage":{"inputTokens":5,"outputTokens":2,"cachedContentTokens":3}}`)},
		{attribute.String("genkit:name", "look"), attribute.String("genkit:metadata:subtype", "tool.v2"), semconv.ConversationID.String("run_1"), semconv.AgentName.String("a")},
		{semconv.OperationName.String(semconv.InvokeAgent), semconv.AgentName.String("a"), semconv.InputTokens.Int(5)},
		{semconv.OperationName.String(semconv.InvokeWorkflow), semconv.AgentName.String("w")},
		{attribute.String("http.route", "/")},
	} {
		_, span := provider.Tracer("x").Start(t.Context(), "span")
		span.SetAttributes(attrs...)
		span.End()
	}
	var all metricdata.ResourceMetrics
	checktest.Must(t, reader.Collect(t.Context(), &all))
	add := func(name string, value any, attributes attribute.Set) {
		got = append(got, fmt.Sprintf("%s %v %s", name, value, attributes.Encoded(attribute.DefaultEncoder())))
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Count, p.Attributes)
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Sum, p.Attributes)
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Value, p.Attributes)
				}
			}
		}
	}
	slices.Sort(got)
	return got
}
