package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

func recorder(t *testing.T) (*tracetest.InMemoryExporter, trace.TracerProvider) {
	exporter := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	t.Cleanup(func() {
		if err := tp.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return exporter, tp
}

func TestSpans(t *testing.T) {
	t.Parallel()
	exporter, tp := recorder(t)
	ctx, parent := telemetry.StartWith(t.Context(), tp, telemetry.SpanOpen, telemetry.KeyBackend.String("x"))
	_, child := telemetry.Start(ctx, telemetry.SpanDriverCreate)
	telemetry.End(child, fmt.Errorf("%w: the secret is 42", backend.ErrImage))
	telemetry.End(parent, nil)
	spans := exporter.GetSpans()
	if len(spans) != 2 || spans[0].Name != telemetry.SpanDriverCreate || spans[1].Name != telemetry.SpanOpen {
		t.Fatalf("spans %v", spans)
	}
	if spans[0].Parent.SpanID() != spans[1].SpanContext.SpanID() || spans[0].InstrumentationScope.Name != telemetry.TracerName {
		t.Error("the driver's span is not a child of the session's span")
	}
	if spans[0].Status.Code != codes.Error || spans[0].Status.Description != "image" || spans[1].Status.Code != codes.Unset {
		t.Errorf("status %+v and %+v", spans[0].Status, spans[1].Status)
	}
	if text := fmt.Sprintf("%+v", spans); strings.Contains(text, "secret") || len(spans[0].Events) != 0 {
		t.Errorf("the span shows the error's text: %s", text)
	}
}

func TestTextIsCut(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "short", strings.Repeat("a", 256), strings.Repeat("a", 255) + "ü", strings.Repeat("ü", 300), strings.Repeat("a", 1<<20), strings.Repeat("\xff", 400)} {
		got := telemetry.Text(telemetry.KeyImage, text).Value.AsString()
		if len(got) > 256 || !strings.HasPrefix(text, got) || (utf8.ValidString(text) && !utf8.ValidString(got)) {
			t.Errorf("%.20q… of %d bytes became %d bytes", text, len(text), len(got))
		}
		if len(text) <= 256 && got != text {
			t.Errorf("%q was cut", text)
		}
	}
}

func TestTraceParent(t *testing.T) {
	t.Parallel()
	if got := telemetry.TraceParent(t.Context()); got != "" {
		t.Errorf("traceparent %q without a trace", got)
	}
	_, tp := recorder(t)
	member, err := baggage.NewMember("user", "ann")
	must(t, err)
	bag, err := baggage.New(member)
	must(t, err)
	ctx, span := telemetry.StartWith(baggage.ContextWithBaggage(t.Context(), bag), tp, telemetry.SpanExec)
	defer span.End()
	sc := span.SpanContext()
	if got, want := telemetry.TraceParent(ctx), fmt.Sprintf("00-%s-%s-01", sc.TraceID(), sc.SpanID()); got != want {
		t.Errorf("traceparent %q, want %q", got, want)
	}
}

func TestClass(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("x"), "internal"},
		{context.Canceled, "canceled"},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), "deadline_exceeded"},
		{&backend.Error{Op: "Open", Err: fmt.Errorf("%w: x", backend.ErrCapacity)}, "capacity"},
		{fmt.Errorf("%w: %w", backend.ErrLost, backend.ErrNotFound), "sandbox_lost"},
		{backend.ErrUnavailable, "unavailable"},
	} {
		if got := telemetry.Class(test.err); got != test.want {
			t.Errorf("Class(%v) = %q, want %q", test.err, got, test.want)
		}
	}
}
