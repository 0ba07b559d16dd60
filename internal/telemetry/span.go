package telemetry

import (
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// maxAttribute is the longest text attribute in bytes: models put whole conversations into what they control.
const maxAttribute = 256

// Start begins a span with the provider of the span that ctx carries, so that a driver needs no provider of its own.
func Start(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	return StartWith(ctx, trace.SpanFromContext(ctx).TracerProvider(), name, attrs...)
}

// StartWith begins a span with the given provider.
func StartWith(ctx context.Context, tp trace.TracerProvider, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	return tp.Tracer(TracerName).Start(ctx, name, trace.WithAttributes(attrs...))
}

// SandboxAttributes returns the backend, key, and run of the sandbox that a span is about.
func SandboxAttributes(backend, key, run string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{KeyBackend.String(backend), Text(KeySandboxKey, key)}
	if run != "" {
		attrs = append(attrs, Text(KeyRunID, run))
	}
	return attrs
}

// StartOperation begins the span of an operation of the conventions, named by what it is done with.
func StartOperation(ctx context.Context, tp trace.TracerProvider, operation string, with attribute.Key, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	name = Text(with, name).Value.AsString()
	return StartWith(ctx, tp, strings.TrimSpace(operation+" "+name), append(attrs, semconv.OperationName.String(operation), with.String(name))...)
}

// Around marks the span that ctx carries, Genkit's, as one whose operation another span, around it, shows.
func Around(ctx context.Context) {
	trace.SpanFromContext(ctx).SetAttributes(semconv.OperationName.String(""))
}

// End ends span and marks it failed, with the class of err, when err is not nil. Defer it on a named error:
//
//	defer func() { telemetry.End(span, err) }()
func End(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		Fail(span, Class(err))
	}
	span.End()
}

// Fail marks span failed, with the class of what went wrong.
func Fail(span trace.Span, class string) {
	span.SetStatus(codes.Error, class)
	span.SetAttributes(semconv.ErrorType.String(class))
}

// Text returns a text attribute, cut to a bounded length; what is not UTF-8 is left out, half a character too.
func Text(key attribute.Key, value string) attribute.KeyValue {
	return key.String(strings.ToValidUTF8(value[:min(len(value), maxAttribute)], ""))
}

// Texts returns the text attributes of values that are not empty.
func Texts(values map[attribute.Key]string) (attrs []attribute.KeyValue) {
	for key, value := range values {
		if value != "" {
			attrs = append(attrs, Text(key, value))
		}
	}
	return attrs
}

// ParseTraceParent returns the span that a W3C traceparent names; one that is not valid for text that is none.
func ParseTraceParent(text string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": text})
	return trace.SpanContextFromContext(ctx)
}

// TraceParent returns the W3C traceparent of the span that ctx carries; empty when there is none.
func TraceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"] // tracestate and baggage stay on the host
}

// Class returns the stable word for the class of err; "internal" when it is of none.
func Class(err error) string {
	if err == nil {
		return ""
	}
	for _, c := range []struct {
		err   error
		class string
	}{ // most specific first
		{context.Canceled, "canceled"},
		{context.DeadlineExceeded, "deadline_exceeded"},
		{backend.ErrClosed, "closed"},
		{backend.ErrLost, "sandbox_lost"},
		{backend.ErrNotFound, "not_found"},
		{backend.ErrExists, "exists"},
		{backend.ErrInvalid, "invalid_argument"},
		{backend.ErrPermission, "permission_denied"},
		{backend.ErrTooLarge, "too_large"},
		{backend.ErrBusy, "busy"},
		{backend.ErrTimeout, "timeout"},
		{backend.ErrUnsupported, "unsupported"},
		{backend.ErrCapacity, "capacity"},
		{backend.ErrQuota, "quota_exceeded"},
		{backend.ErrImage, "image"},
		{backend.ErrProtocol, "protocol"},
		{backend.ErrUnavailable, "unavailable"},
	} {
		if errors.Is(err, c.err) {
			return c.class
		}
	}
	return "internal"
}
