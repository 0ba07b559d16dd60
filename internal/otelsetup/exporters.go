package otelsetup

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

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

// consoleExporter writes one line of JSON per span, for OTEL_TRACES_EXPORTER=console.
type consoleExporter struct {
	mu sync.Mutex // keeps lines whole
	w  io.Writer
}

type consoleSpan struct {
	Name       string         `json:"name"`
	TraceID    string         `json:"trace_id"`
	SpanID     string         `json:"span_id"`
	ParentID   string         `json:"parent_id,omitempty"`
	Start      time.Time      `json:"start"`
	DurationMS float64        `json:"duration_ms"`
	Status     string         `json:"status,omitempty"`
	Attributes map[string]any `json:"attributes,omitempty"`
}

// ExportSpans writes spans in the order they ended.
func (c *consoleExporter) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	enc := json.NewEncoder(c.w)
	for _, s := range spans {
		line := consoleSpan{
			Name:       s.Name(),
			TraceID:    s.SpanContext().TraceID().String(),
			SpanID:     s.SpanContext().SpanID().String(),
			Start:      s.StartTime(),
			DurationMS: float64(s.EndTime().Sub(s.StartTime()).Microseconds()) / 1000,
			Status:     s.Status().Code.String(),
			Attributes: map[string]any{},
		}
		if s.Parent().IsValid() {
			line.ParentID = s.Parent().SpanID().String()
		}
		for _, kv := range s.Attributes() {
			line.Attributes[string(kv.Key)] = kv.Value.AsInterface()
		}
		if err := enc.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// Shutdown has nothing to release.
func (*consoleExporter) Shutdown(context.Context) error { return nil }
