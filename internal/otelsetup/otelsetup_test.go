package otelsetup

import (
	"context"
	"io"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/internal/environ"
)

func TestNewExporterIsOffByDefault(t *testing.T) {
	t.Parallel()
	for name, vars := range map[string]map[string]string{
		"nothing":  {},
		"none":     {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
		"disabled": {"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
	} {
		if e, err := newExporter(t.Context(), environ.Of(vars), io.Discard); e != nil || err != nil {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	if _, err := newExporter(t.Context(), environ.Of(map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}), io.Discard); err == nil {
		t.Error("zipkin is no error")
	}
}

func TestScrubber(t *testing.T) {
	t.Parallel()
	export := func(keep bool) tracetest.SpanStub {
		memory := tracetest.NewInMemoryExporter()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(&scrubber{next: memory, keepContent: keep}))
		_, span := provider.Tracer("x").Start(context.Background(), "span")
		span.SetAttributes(attribute.String("genkit:input", "in"), attribute.String("genkit:output", "out"),
			attribute.String("genkit:init", "init"), attribute.String("genkit:name", "name"),
			attribute.String("long", strings.Repeat("é", maxAttributeLength)), attribute.Int("n", 3))
		span.RecordError(io.ErrUnexpectedEOF)
		span.SetStatus(codes.Error, "description")
		span.End()
		return memory.GetSpans()[0]
	}
	keys := func(list []attribute.KeyValue) string {
		var out []string
		for _, kv := range list {
			out = append(out, string(kv.Key))
		}
		return strings.Join(out, " ")
	}
	s := export(false)
	if got, want := keys(s.Attributes), "genkit:name long n"; got != want {
		t.Errorf("attributes = %s, want %s", got, want)
	}
	if n := len(s.Attributes[1].Value.AsString()); n != maxAttributeLength {
		t.Errorf("the long value has %d bytes", n)
	}
	if got, want := keys(s.Events[0].Attributes), "exception.type"; got != want {
		t.Errorf("event = %s, want %s", got, want)
	}
	if s.Status.Description != "" || s.Status.Code != codes.Error {
		t.Errorf("status = %+v", s.Status)
	}
	s = export(true)
	if len(s.Attributes) != 6 || s.Status.Description != "description" || len(s.Events[0].Attributes) != 2 {
		t.Errorf("kept span = %+v", s)
	}
}

func TestExportNoticeIsGivenOnce(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	n := &exportNotice{w: &b}
	n.Handle(context.DeadlineExceeded)
	n.Handle(io.EOF)
	if got, want := b.String(), "workcell: notice: traces could not be exported: the collector did not answer in time\n"; got != want {
		t.Errorf("notices = %q, want %q", got, want)
	}
}

// TestEndpointWithoutScheme: the exporter would send elsewhere without an error that a user understands.
func TestEndpointWithoutScheme(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		lookup := environ.Lookup(func(key string) (string, bool) {
			if key != name {
				return "", false
			}
			return "127.0.0.1:4318", true
		})
		exporter, err := newExporter(t.Context(), lookup, io.Discard)
		if want := name + "=127.0.0.1:4318 is no URL, write http://127.0.0.1:4318"; err == nil || err.Error() != want || exporter != nil {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
