// Package otelsetup sets up the OpenTelemetry SDK of a command by the standard OTEL_* variables. Libraries use the API only.
package otelsetup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/firebase/genkit/go/core/tracing"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

const (
	// maxAttributeLength bounds attribute values: Genkit records the whole conversation on every model span, and a
	// long run would exceed what a collector takes in one message.
	maxAttributeLength = 4096

	// flushTimeout bounds how long a command waits for the collector at its end.
	flushTimeout = 5 * time.Second
)

// Options say what traces are of. All but Content are required.
type Options struct {
	Env     environ.Lookup
	Stderr  io.Writer
	Version string // of the service
	// Content exports what Genkit records of prompts, answers and tool calls. These may hold secrets, so they and the
	// text of errors are dropped at export by default.
	Content bool
}

// Tracing is the OpenTelemetry SDK of this process, or nothing when no traces are wanted.
type Tracing struct {
	provider *sdktrace.TracerProvider // nil when off
	roots    *rootRecorder
	notice   *exportNotice
}

// Start sets the global tracer provider as the variables say and returns the context that carries the caller's trace, if
// TRACEPARENT names one. It must run before genkit.Init, which otherwise installs a provider of its own. Traces are off
// unless an endpoint is set, or OTEL_TRACES_EXPORTER asks for them.
//
// Settings that cannot be used are a notice: traces never keep a run from running.
func Start(ctx context.Context, o Options) (context.Context, *Tracing) {
	dev := o.Env.Get("GENKIT_ENV") == "dev"
	t := &Tracing{roots: &rootRecorder{}, notice: &exportNotice{w: o.Stderr}}
	exporter, err := newExporter(ctx, o.Env, o.Stderr)
	if err != nil {
		t.notice.Handle(err)
	}
	if err != nil || exporter == nil {
		return ctx, t
	}
	limits := sdktrace.NewSpanLimits()
	// The Developer UI shares this provider and needs whole values; the exporter below cuts them anyway.
	if limits.AttributeValueLengthLimit < 0 && !dev {
		limits.AttributeValueLengthLimit = maxAttributeLength
	}
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&scrubber{next: exporter, keepContent: o.Content || dev}),
		sdktrace.WithSpanProcessor(t.roots),
		sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithResource(newResource(ctx, o.Version)),
	)
	otel.SetErrorHandler(t.notice)
	otel.SetTracerProvider(t.provider)
	if server := o.Env.Get("GENKIT_TELEMETRY_SERVER"); server != "" {
		// Genkit attaches the Developer UI's exporter only to a provider it made itself.
		client := tracing.NewHTTPTelemetryClient(server)
		if o.Env.Get("GENKIT_ENABLE_REALTIME_TELEMETRY") == "true" {
			tracing.WriteTelemetryRealtime(client)
		} else {
			tracing.WriteTelemetryImmediate(client)
		}
	}
	carrier := propagation.MapCarrier{"traceparent": o.Env.Get("TRACEPARENT"), "tracestate": o.Env.Get("TRACESTATE")}
	return propagation.TraceContext{}.Extract(ctx, carrier), t
}

// newResource returns the service: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, else "workcell".
func newResource(ctx context.Context, version string) *resource.Resource {
	r, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "workcell"),
			attribute.String("service.version", version),
		),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv(), // later detectors win
	)
	if err != nil && r == nil {
		return resource.Default()
	}
	return r // a bad OTEL_RESOURCE_ATTRIBUTES loses only what it could not say
}

// newExporter returns the exporter that the environment asks for, nil for none.
func newExporter(ctx context.Context, e environ.Lookup, stderr io.Writer) (sdktrace.SpanExporter, error) {
	if strings.EqualFold(e.Get("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	variable, endpoint := e.First("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	switch kind := e.Get("OTEL_TRACES_EXPORTER"); kind {
	case "none":
		return nil, nil
	case "console":
		return &consoleExporter{w: stderr}, nil
	case "":
		if endpoint == "" {
			return nil, nil
		}
	case "otlp":
	default:
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER=%s is not supported, use otlp, console or none", kind)
	}
	if endpoint != "" && !strings.Contains(endpoint, "://") { // the exporter would send to its default instead
		return nil, fmt.Errorf("%s=%s is no URL, write http://%[2]s", variable, endpoint)
	}
	_, protocol := e.First("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
	switch protocol {
	case "grpc":
		return otlptracegrpc.New(ctx)
	case "", "http/protobuf":
		return otlptracehttp.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s is not supported, use grpc or http/protobuf", protocol)
	}
}

// Close sends what is left, for a bounded time and also when ctx has ended. Failures are a notice, never an error of
// the command.
func (t *Tracing) Close(ctx context.Context) {
	if t.provider == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.notice.Handle(err)
	}
}

// TraceID returns the id of the first trace of this process, empty when traces are off or there was none.
func (t *Tracing) TraceID() string {
	return t.roots.traceID()
}

// rootRecorder remembers the trace of the first span.
type rootRecorder struct {
	mu sync.Mutex // guards id
	id trace.TraceID
}

func (r *rootRecorder) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.id.IsValid() {
		r.id = s.SpanContext().TraceID()
	}
}

func (*rootRecorder) OnEnd(sdktrace.ReadOnlySpan)      {}
func (*rootRecorder) Shutdown(context.Context) error   { return nil }
func (*rootRecorder) ForceFlush(context.Context) error { return nil }

func (r *rootRecorder) traceID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.id.IsValid() {
		return ""
	}
	return r.id.String()
}

// exportNotice reports once that traces do not arrive.
type exportNotice struct {
	w    io.Writer
	once sync.Once
}

// Handle is an otel.ErrorHandler.
func (n *exportNotice) Handle(err error) {
	n.once.Do(func() {
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.New("the collector did not answer in time")
		}
		fmt.Fprintf(n.w, "workcell: notice: traces could not be exported: %s\n", sanitize.Line(err.Error()))
	})
}
