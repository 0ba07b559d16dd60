package otelgenai

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// scope is the instrumentation scope of the metrics.
const scope = "github.com/workcell-dev/workcell/otelgenai"

// NewMetrics returns an exporter that sends nothing and measures the spans it gets: how long models, tools, agents and
// workflows take, and the tokens of models. Put it behind NewProcessor, which names them, and beside another exporter
// or alone:
//
//	sdktrace.WithSpanProcessor(otelgenai.NewProcessor(
//		sdktrace.NewBatchSpanProcessor(otelgenai.NewMetrics(provider)), otelgenai.Options{}))
//
// Only spans that are sampled are measured.
func NewMetrics(provider metric.MeterProvider) sdktrace.SpanExporter {
	m := &metrics{durations: map[string]metric.Float64Histogram{}}
	meter := provider.Meter(scope)
	var errs []error
	for operation, name := range map[string]string{
		semconv.Chat: semconv.MetricModelDuration, semconv.ExecuteTool: semconv.MetricToolDuration,
		semconv.InvokeAgent: semconv.MetricAgentDuration, semconv.InvokeWorkflow: semconv.MetricWorkflowDuration,
	} {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(semconv.DurationBuckets()...))
		m.durations[operation], errs = h, append(errs, err)
	}
	m.durations[semconv.Embeddings] = m.durations[semconv.Chat]
	var err error
	m.tokens, err = meter.Int64Histogram(semconv.MetricTokens, metric.WithUnit("{token}"), metric.WithExplicitBucketBoundaries(
		1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864))
	if err := errors.Join(append(errs, err)...); err != nil {
		panic("otelgenai: " + err.Error()) // a name that is not valid: a bug here
	}
	return m
}

type metrics struct {
	durations map[string]metric.Float64Histogram // by operation
	tokens    metric.Int64Histogram
}

// ExportSpans measures the spans.
func (m *metrics) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, s := range spans {
		m.measure(ctx, s)
	}
	return nil
}

// Shutdown has nothing to release: the provider is its owner's.
func (*metrics) Shutdown(context.Context) error { return nil }

func (m *metrics) measure(ctx context.Context, s sdktrace.ReadOnlySpan) {
	set := attribute.NewSet(s.Attributes()...)
	operation, _ := set.Value(semconv.OperationName)
	duration := m.durations[operation.AsString()]
	if duration == nil || set.HasValue(semconv.MCPMethod) { // a server's span has a metric of its own
		return
	}
	// Names that programs choose, and models and classes of errors, but no ids: each is a time series of its own.
	var labels []attribute.KeyValue
	name := semconv.RequestModel // an agent may use several
	if operation.AsString() == semconv.InvokeAgent {
		name = semconv.AgentName // tools have one, too
	}
	for _, key := range []attribute.Key{semconv.OperationName, semconv.ProviderName, name, semconv.ToolName, semconv.WorkflowName, semconv.ErrorType} {
		if v, ok := set.Value(key); ok {
			labels = append(labels, attribute.KeyValue{Key: key, Value: v})
		}
	}
	with := metric.WithAttributes(labels...)
	duration.Record(ctx, s.EndTime().Sub(s.StartTime()).Seconds(), with)
	if operation.AsString() != semconv.Chat {
		return // an agent's tokens are the sum of its models'
	}
	for key, kind := range map[attribute.Key]string{semconv.InputTokens: "input", semconv.OutputTokens: "output"} {
		if n, ok := set.Value(key); ok {
			m.tokens.Record(ctx, n.AsInt64(), with, metric.WithAttributes(semconv.TokenType.String(kind)))
		}
	}
}
