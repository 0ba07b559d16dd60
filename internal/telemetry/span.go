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

// maxAttribute is the maximum length of a text attribute, in bytes. It is needed because models can put whole
// conversations into some attributes.
const maxAttribute = 256

// Start starts a span with the provider of the span in ctx, so that drivers need no provider.
func Start(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	return StartWith(ctx, trace.SpanFromContext(ctx).TracerProvider(), name, attrs...)
}

// StartWith starts a span with the given provider.
func StartWith(
	ctx context.Context, tp trace.TracerProvider, name string, attrs ...attribute.KeyValue,
) (context.Context, trace.Span) {
	return tp.Tracer(TracerName).Start(ctx, name, trace.WithAttributes(attrs...))
}

// SandboxAttributes returns attributes for the backend, key, and run of a sandbox.
func SandboxAttributes(backend, key, run string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{KeyBackend.String(backend), Text(KeySandboxKey, key)}
	if run != "" {
		attrs = append(attrs, Text(KeyRunID, run))
	}
	return attrs
}

// StartOperation starts the span of an operation in the OpenTelemetry conventions. The span's name contains the
// operation and the subject.
func StartOperation(
	ctx context.Context, tp trace.TracerProvider, operation string, with attribute.Key, name string,
	attrs ...attribute.KeyValue,
) (context.Context, trace.Span) {
	name = Text(with, name).Value.AsString()
	attrs = append(attrs, semconv.OperationName.String(operation), with.String(name))
	return StartWith(ctx, tp, strings.TrimSpace(operation+" "+name), attrs...)
}

// Around marks the span in ctx, which Genkit created, as a duplicate: another span around it describes the same
// operation.
func Around(ctx context.Context) {
	trace.SpanFromContext(ctx).SetAttributes(semconv.OperationName.String(""))
}

// End ends a span. If err is not nil, it marks the span as failed and sets the class of err. Defer it on a named error:
//
//	defer func() { telemetry.End(span, err) }()
func End(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		Fail(span, Class(err))
	}
	span.End()
}

// Fail marks a span as failed and sets the class of the error.
func Fail(span trace.Span, class string) {
	span.SetStatus(codes.Error, class)
	span.SetAttributes(semconv.ErrorType.String(class))
}

// Text returns a text attribute with a limited length. Invalid UTF-8, including incomplete characters, is removed.
func Text(key attribute.Key, value string) attribute.KeyValue {
	return key.String(strings.ToValidUTF8(value[:min(len(value), maxAttribute)], ""))
}

// Texts returns text attributes for the nonempty values.
func Texts(values map[attribute.Key]string) (attrs []attribute.KeyValue) {
	for key, value := range values {
		if value != "" {
			attrs = append(attrs, Text(key, value))
		}
	}
	return attrs
}

// ParseTraceParent returns the span in a W3C traceparent. If the text is not valid, neither is the span.
func ParseTraceParent(text string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": text})
	return trace.SpanContextFromContext(ctx)
}

// TraceParent returns the W3C traceparent of the span in ctx, or an empty string if ctx has none.
func TraceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"] // tracestate and baggage stay on the host
}

// Class returns a stable word for the class of err, for example "not_found", or "internal" if err has no known class.
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
