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

func TestNewExporter(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		vars map[string]string
		err  string // none: traces are off
	}{
		"nothing":     {map[string]string{}, ""},
		"none":        {map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ""},
		"disabled":    {map[string]string{"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ""},
		"unsupported": {map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin is not supported, use otlp, console or none"},
		// The exporter would send elsewhere without an error that a user understands.
		"no scheme":            {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "h:1"}, "OTEL_EXPORTER_OTLP_ENDPOINT=h:1 is no URL, write http://h:1"},
		"no scheme for traces": {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "h:1"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=h:1 is no URL, write http://h:1"},
	} {
		e, err := newExporter(t.Context(), environ.Of(test.vars), io.Discard)
		if e != nil || test.err == "" && err != nil || test.err != "" && (err == nil || err.Error() != test.err) {
			t.Errorf("%s: %v, %v, want %q", name, e, err, test.err)
		}
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

func TestExportNoticeAppearsOnce(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	n := &exportNotice{w: &b}
	n.Handle(context.DeadlineExceeded)
	n.Handle(io.EOF)
	if got, want := b.String(), "workcell: notice: traces could not be exported: the collector did not answer in time\n"; got != want {
		t.Errorf("notices = %q, want %q", got, want)
	}
}
