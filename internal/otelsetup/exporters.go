package otelsetup

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// scrubber is an exporter that drops contents from spans before they leave the process, and cuts long values. Genkit
// records the input and output of every model and tool call, and errors quote them: file contents, command lines and
// whatever secret a prompt or a tool's argument held.
type scrubber struct {
	next        sdktrace.SpanExporter
	keepContent bool
}

// ExportSpans exports scrubbed views of spans.
func (s *scrubber) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	out := make([]sdktrace.ReadOnlySpan, len(spans))
	for i, span := range spans {
		out[i] = scrubSpan(span, s.keepContent)
	}
	return s.next.ExportSpans(ctx, out)
}

// Shutdown ends the exporter.
func (s *scrubber) Shutdown(ctx context.Context) error { return s.next.Shutdown(ctx) }

// scrubbedSpan overrides what may hold contents.
type scrubbedSpan struct {
	sdktrace.ReadOnlySpan
	attributes []attribute.KeyValue
	events     []sdktrace.Event
	status     sdktrace.Status
}

func (s *scrubbedSpan) Attributes() []attribute.KeyValue { return s.attributes }
func (s *scrubbedSpan) Events() []sdktrace.Event         { return s.events }
func (s *scrubbedSpan) Status() sdktrace.Status          { return s.status }

func scrubSpan(span sdktrace.ReadOnlySpan, keep bool) sdktrace.ReadOnlySpan {
	out := &scrubbedSpan{
		ReadOnlySpan: span,
		attributes:   scrubAttributes(span.Attributes(), keep),
		status:       span.Status(),
	}
	for _, ev := range span.Events() {
		ev.Attributes = scrubAttributes(ev.Attributes, keep)
		out.events = append(out.events, ev)
	}
	if !keep {
		out.status.Description = ""
	}
	return out
}

func scrubAttributes(in []attribute.KeyValue, keep bool) []attribute.KeyValue {
	out := make([]attribute.KeyValue, 0, len(in))
	for _, kv := range in {
		if !keep && holdsContent(string(kv.Key)) {
			continue
		}
		if v := kv.Value; v.Type() == attribute.STRING && len(v.AsString()) > maxAttributeLength {
			kv = attribute.String(string(kv.Key), strings.ToValidUTF8(v.AsString()[:maxAttributeLength], ""))
		}
		out = append(out, kv)
	}
	return out
}

// holdsContent reports whether an attribute, of Genkit or of OpenTelemetry's error events, quotes what went through a call.
func holdsContent(key string) bool {
	switch key {
	case "genkit:input", "genkit:output", "genkit:init", "genkit:error", "exception.message", "exception.stacktrace":
		return true
	}
	return strings.HasPrefix(key, "genkit:metadata:context")
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
