// Package otelsetup sets up the OpenTelemetry SDK of a command from the standard OTEL_* variables. Libraries use only
// the OpenTelemetry API.
package otelsetup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firebase/genkit/go/core/tracing"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/runtrace"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/otelgenai"
)

const (
	// maxAttributeLength limits attribute values. Genkit records the whole conversation in every model span, so a long run
	// would exceed the message size of a collector.
	maxAttributeLength = 4096

	// flushTimeout is the maximum time to wait for the collector at the end of a command.
	flushTimeout = 5 * time.Second

	// localDelay is the maximum delay before a span is written to the file. A killed process loses the spans of this time.
	localDelay = time.Second
)

// Options configures traces. All fields except Content and Keep are required.
type Options struct {
	Env     environ.Lookup
	Stderr  io.Writer
	Version string // service version
	// Content exports the contents recorded by Genkit: prompts, answers, and tool calls. They may contain secrets. By
	// default, they and error texts are removed before export.
	Content bool
	// Keep stores the spans for Tracing.KeepIn, even if they are not exported.
	Keep bool
}

// Tracing is the OpenTelemetry SDK of this process. If traces are off, it is empty.
type Tracing struct {
	shutdown []func(context.Context) error // of the providers, in the order of their start
	kept     *runtrace.Recorder            // nil if spans are not stored
	exports  bool
	roots    *rootRecorder
	notice   *exportNotice
}

// Start sets the global providers from the variables. It returns a context with the caller's trace from TRACEPARENT, if
// set. It must run before genkit.Init, which otherwise installs another provider. Nothing is exported unless an
// endpoint, OTEL_TRACES_EXPORTER, or OTEL_METRICS_EXPORTER is set. Metrics require their own variables.
//
// Invalid settings cause a notice and not an error, because traces must never prevent a run.
func Start(ctx context.Context, o Options) (context.Context, *Tracing) {
	t := &Tracing{roots: &rootRecorder{}, notice: &exportNotice{w: o.Stderr}}
	if strings.EqualFold(o.Env.Get("OTEL_SDK_DISABLED"), "true") {
		return ctx, t
	}
	otel.SetErrorHandler(t.notice)
	service := newResource(ctx, o.Version)
	var local []sdktrace.SpanExporter
	if metrics := t.startMetrics(ctx, o, service); metrics != nil {
		local = append(local, metrics)
	}
	exporter, err := newExporter(ctx, o.Env, o.Stderr)
	if err != nil {
		t.notice.Handle(err)
	}
	t.exports = exporter != nil
	if o.Keep {
		t.kept = &runtrace.Recorder{}
		local = append(local, t.kept.Exporter())
	}
	if !t.exports && len(local) == 0 {
		return ctx, t
	}
	t.startTraces(o, service, exporter, local)
	carrier := propagation.MapCarrier{"traceparent": o.Env.Get("TRACEPARENT"), "tracestate": o.Env.Get("TRACESTATE")}
	return propagation.TraceContext{}.Extract(ctx, carrier), t
}

// startTraces sets the tracer provider. The exporters in local get every span soon, even if the collector does not
// respond.
func (t *Tracing) startTraces(
	o Options, service *resource.Resource, exporter sdktrace.SpanExporter, local []sdktrace.SpanExporter,
) {
	limits := sdktrace.NewSpanLimits()
	// The mapping applies the length limit from the environment variables. The SDK must not apply it, because the mapping
	// reads token counts from text, which the SDK would truncate.
	mapping := otelgenai.Options{MaxLength: limits.AttributeValueLengthLimit, OldNames: oldNames(o.Env)}
	if mapping.MaxLength <= 0 || mapping.MaxLength > maxAttributeLength {
		mapping.MaxLength = maxAttributeLength
	}
	limits.AttributeValueLengthLimit = -1
	mapping.Content = o.Content || otelgenai.CaptureContent(o.Env.Get(otelgenai.CaptureVariable)) ||
		o.Env.Get("GENKIT_ENV") == "dev"
	options := []sdktrace.TracerProviderOption{
		sdktrace.WithSpanProcessor(t.roots), sdktrace.WithRawSpanLimits(limits), sdktrace.WithResource(service),
	}
	for _, e := range local {
		options = append(options, sdktrace.WithSpanProcessor(otelgenai.NewProcessor(
			sdktrace.NewBatchSpanProcessor(e, sdktrace.WithBatchTimeout(localDelay), sdktrace.WithBlocking()), mapping)))
	}
	if exporter != nil {
		options = append(options,
			sdktrace.WithSpanProcessor(otelgenai.NewProcessor(sdktrace.NewBatchSpanProcessor(exporter), mapping)))
	}
	provider := sdktrace.NewTracerProvider(options...)
	otel.SetTracerProvider(provider)
	t.shutdown = append(t.shutdown, provider.Shutdown)
	if server := o.Env.Get("GENKIT_TELEMETRY_SERVER"); server != "" {
		// Genkit attaches the Developer UI's exporter only to Genkit's own provider.
		client := tracing.NewHTTPTelemetryClient(server)
		if o.Env.Get("GENKIT_ENABLE_REALTIME_TELEMETRY") == "true" {
			tracing.WriteTelemetryRealtime(client)
		} else {
			tracing.WriteTelemetryImmediate(client)
		}
	}
}

// startMetrics sets the meter provider. It returns the exporter for metrics from spans, or nil if metrics are
// off.
func (t *Tracing) startMetrics(ctx context.Context, o Options, service *resource.Resource) sdktrace.SpanExporter {
	exporter, err := newMetricExporter(ctx, o.Env)
	if err != nil {
		t.notice.Handle(err)
	}
	if err != nil || exporter == nil {
		return nil
	}
	genkits := sdkmetric.NewView(sdkmetric.Instrument{Name: "genkit/*"},
		sdkmetric.Stream{Aggregation: sdkmetric.AggregationDrop{}})
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)),
		sdkmetric.WithResource(service), sdkmetric.WithView(genkits))
	otel.SetMeterProvider(provider)
	t.shutdown = append(t.shutdown, provider.Shutdown)
	return otelgenai.NewMetrics(provider, otelgenai.Options{OldNames: oldNames(o.Env)})
}

// oldNames reports whether spans and metrics also have the names of the conventions' previous version.
func oldNames(e environ.Lookup) bool {
	list := strings.ReplaceAll(e.Get("OTEL_SEMCONV_STABILITY_OPT_IN"), " ", "")
	return slices.Contains(strings.Split(list, ","), "gen_ai/dup")
}

// KeepIn stores the spans of this process in dir, including earlier spans. It reports whether spans
// are stored. If Options.Keep is not set or traces are off, it returns false. Later calls do not change the directory.
func (t *Tracing) KeepIn(dir string) bool {
	return t.kept != nil && t.kept.Keep(dir)
}

// newResource returns the service resource from OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES. The default name is
// "workcell".
func newResource(ctx context.Context, version string) *resource.Resource {
	r, _ := resource.New(ctx, // an invalid OTEL_RESOURCE_ATTRIBUTES loses only the invalid attributes
		resource.WithAttributes(
			attribute.String("service.name", "workcell"),
			attribute.String("service.version", version),
		),
		resource.WithHost(),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv(), // later detectors override earlier ones
	)
	return r
}

// newExporter returns the trace exporter configured in the environment, or nil for none.
func newExporter(ctx context.Context, e environ.Lookup, stderr io.Writer) (sdktrace.SpanExporter, error) {
	if e.Get("OTEL_TRACES_EXPORTER") == "console" {
		return stdouttrace.New(stdouttrace.WithWriter(stderr))
	}
	protocol, err := wantedProtocol(e, "TRACES", "otlp, console or none")
	if err != nil || protocol == "" {
		return nil, err
	}
	return newTraceClient(ctx, protocol)
}

// newMetricExporter is like newExporter, for metrics.
func newMetricExporter(ctx context.Context, e environ.Lookup) (sdkmetric.Exporter, error) {
	if e.Get("OTEL_METRICS_EXPORTER") == "" && e.Get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") == "" {
		return nil, nil // the common endpoint is often Jaeger, which accepts only traces
	}
	protocol, err := wantedProtocol(e, "METRICS", "otlp or none")
	if err != nil || protocol == "" {
		return nil, err
	}
	return newMetricClient(ctx, protocol)
}

// OTLP protocols.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// wantedProtocol returns the export protocol of a signal, TRACES or METRICS. It is empty if the signal is not exported.
// kinds lists the supported exporters for the error message.
func wantedProtocol(e environ.Lookup, signal, kinds string) (string, error) {
	if strings.EqualFold(e.Get("OTEL_SDK_DISABLED"), "true") {
		return "", nil
	}
	variable, endpoint := e.First("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	switch kind := e.Get("OTEL_" + signal + "_EXPORTER"); {
	case kind == "none", kind == "" && endpoint == "":
		return "", nil
	case kind != "" && kind != "otlp":
		return "", fmt.Errorf("OTEL_%s_EXPORTER=%s is not supported, use %s", signal, kind, kinds)
	}
	if endpoint != "" && !strings.Contains(endpoint, "://") { // otherwise the exporter would silently use its default
		return "", fmt.Errorf("%s=%s is not a URL, use http://%[2]s", variable, endpoint)
	}
	switch _, protocol := e.First("OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
	case protocolGRPC, protocolHTTP:
		return protocol, nil
	case "":
		return protocolHTTP, nil
	default:
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s is not supported, use %s or %s", protocol, protocolGRPC,
			protocolHTTP)
	}
}

// Close exports the remaining data. It waits for a limited time, even if ctx is done. Failures cause a notice and never
// an error of the command.
func (t *Tracing) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	for _, shutdown := range slices.Backward(t.shutdown) { // spans before metrics, which are derived from them
		if err := shutdown(ctx); err != nil {
			t.notice.Handle(err)
		}
	}
	if t.kept != nil {
		if err := t.kept.Close(); err != nil {
			t.notice.Handle(fmt.Errorf("cannot save the run's spans: %w", err))
		}
	}
}

// TraceID returns the id of the first trace of this process. It is empty if traces are not exported or no trace was
// started.
func (t *Tracing) TraceID() string {
	if id := t.roots.id.Load(); id != nil && t.exports {
		return id.String()
	}
	return ""
}

// rootRecorder stores the trace id of the first span.
type rootRecorder struct{ id atomic.Pointer[trace.TraceID] }

func (r *rootRecorder) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	id := s.SpanContext().TraceID()
	r.id.CompareAndSwap(nil, &id)
}

func (*rootRecorder) OnEnd(sdktrace.ReadOnlySpan)      {}
func (*rootRecorder) Shutdown(context.Context) error   { return nil }
func (*rootRecorder) ForceFlush(context.Context) error { return nil }

// exportNotice prints one notice if traces cannot be exported.
type exportNotice struct {
	w    io.Writer
	once sync.Once
}

// Handle implements otel.ErrorHandler.
func (n *exportNotice) Handle(err error) {
	n.once.Do(func() {
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.New("the collector did not respond in time")
		}
		fmt.Fprintf(n.w, "workcell: cannot export traces or metrics: %s\n", sanitize.Line(err.Error()))
	})
}
