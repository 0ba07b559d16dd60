package otelsetup

import (
	"context"
	"errors"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// fanOut is an exporter that hands spans to several, in their order.
type fanOut []sdktrace.SpanExporter

// ExportSpans exports spans to all.
func (f fanOut) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	var errs []error
	for _, e := range f {
		errs = append(errs, e.ExportSpans(ctx, spans))
	}
	return errors.Join(errs...)
}

// Shutdown ends all.
func (f fanOut) Shutdown(ctx context.Context) error {
	var errs []error
	for _, e := range f {
		errs = append(errs, e.Shutdown(ctx))
	}
	return errors.Join(errs...)
}
