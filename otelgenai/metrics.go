package otelgenai

import (
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// scope is the instrumentation scope of the metrics.
const scope = "github.com/workcell-dev/workcell/otelgenai"

// NewMetrics returns an exporter that measures the received spans and sends nothing. It measures the durations of
// models, tools, agents, and workflows, and the tokens of models. Put it behind NewProcessor with the same options,
// because NewProcessor sets the names. You can use it together with another exporter or alone:
//
//	sdktrace.WithSpanProcessor(otelgenai.NewProcessor(
//		sdktrace.NewBatchSpanProcessor(otelgenai.NewMetrics(provider, o)), o))
//
// Only sampled spans are measured. Options.OldNames adds the metrics replaced by the release.
func NewMetrics(provider metric.MeterProvider, o Options) sdktrace.SpanExporter {
	m := &metrics{
		durations: map[string][]metric.Float64Histogram{}, used: map[attribute.Key]metric.Int64Counter{},
		perCall: map[attribute.Key]metric.Int64Histogram{},
	}
	meter := provider.Meter(scope)
	var errs []error
	duration := func(name string, operations ...string) {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"),
			metric.WithExplicitBucketBoundaries(semconv.DurationBuckets()...))
		errs = append(errs, err)
		for _, op := range operations {
			m.durations[op] = append(m.durations[op], h)
		}
	}
	tokens := func(name string) metric.Int64Histogram {
		h, err := meter.Int64Histogram(name, metric.WithUnit("{token}"),
			metric.WithExplicitBucketBoundaries(1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216,
				67108864))
		errs = append(errs, err)
		return h
	}
	duration(semconv.MetricModelDuration, semconv.Chat)
	duration(semconv.MetricEmbedderDuration, semconv.Embeddings)
	duration(semconv.MetricToolDuration, semconv.ExecuteTool)
	duration(semconv.MetricAgentDuration, semconv.InvokeAgent, semconv.InvokeWorkflow)
	for key, name := range map[attribute.Key]string{
		semconv.InputTokens: semconv.MetricInputTokens, semconv.OutputTokens: semconv.MetricOutputTokens,
		semconv.CachedTokens: semconv.MetricCachedTokens, semconv.ThinkingTokens: semconv.MetricThinkingTokens,
	} {
		c, err := meter.Int64Counter(name, metric.WithUnit("{token}"))
		m.used[key], errs = c, append(errs, err)
	}
	m.perCall[semconv.InputTokens] = tokens(semconv.MetricCallInput)
	m.perCall[semconv.OutputTokens] = tokens(semconv.MetricCallOutput)
	if o.OldNames {
		duration(semconv.OldModelDuration, semconv.Chat, semconv.Embeddings)
		duration(semconv.OldWorkflowDuration, semconv.InvokeWorkflow)
		m.oldTokens = tokens(semconv.OldTokens)
	}
	if err := errors.Join(errs...); err != nil {
		panic("otelgenai: " + err.Error()) // an invalid name: a bug here
	}
	return m
}

type metrics struct {
	durations map[string][]metric.Float64Histogram    // by operation
	used      map[attribute.Key]metric.Int64Counter   // by the attribute of spans
	perCall   map[attribute.Key]metric.Int64Histogram // by the attribute of spans
	oldTokens metric.Int64Histogram                   // nil without old names
}

// ExportSpans records the metrics of the spans.
func (m *metrics) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, s := range spans {
		m.measure(ctx, s)
	}
	return nil
}

// Shutdown does nothing, because the provider belongs to the caller.
func (*metrics) Shutdown(context.Context) error { return nil }

func (m *metrics) measure(ctx context.Context, s sdktrace.ReadOnlySpan) {
	set := attribute.NewSet(s.Attributes()...)
	operation, _ := set.Value(semconv.OperationName)
	durations := m.durations[operation.AsString()]
	if durations == nil || set.HasValue(semconv.MCPMethod) { // a server's span has a separate metric
		return
	}
	// Labels are names chosen by programs, models, and error classes, but no ids, because each value is a separate time
	// series.
	var labels []attribute.KeyValue
	name := semconv.RequestModel // an agent may use several
	if op := operation.AsString(); op == semconv.InvokeAgent || op == semconv.InvokeWorkflow {
		name = semconv.AgentName // tools have one, too
	}
	for _, key := range []attribute.Key{
		semconv.OperationName, semconv.ProviderName, name, semconv.ToolName, semconv.OldWorkflowName, semconv.ErrorType,
	} {
		if v, ok := set.Value(key); ok {
			labels = append(labels, attribute.KeyValue{Key: key, Value: v})
		}
	}
	with := metric.WithAttributes(labels...)
	for _, d := range durations {
		d.Record(ctx, s.EndTime().Sub(s.StartTime()).Seconds(), with)
	}
	if operation.AsString() != semconv.Chat {
		return // an agent's tokens are the sum of the models' tokens
	}
	for key, counter := range m.used {
		n, ok := set.Value(key)
		if !ok {
			continue
		}
		counter.Add(ctx, n.AsInt64(), with,
			metric.WithAttributes(semconv.Modality.String("unknown"))) // Genkit has only totals
		if h := m.perCall[key]; h != nil {
			h.Record(ctx, n.AsInt64(), with)
			if m.oldTokens != nil {
				kind := strings.TrimSuffix(strings.TrimPrefix(string(key), "gen_ai.usage."), "_tokens")
				m.oldTokens.Record(ctx, n.AsInt64(), with, metric.WithAttributes(semconv.OldTokenType.String(kind)))
			}
		}
	}
}
