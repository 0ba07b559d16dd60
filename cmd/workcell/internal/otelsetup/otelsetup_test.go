package otelsetup

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
)

func TestNewExporter(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		vars map[string]string
		err  string // if empty, traces are off without an error
	}{
		"nothing":     {map[string]string{}, ""},
		"none":        {map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ""},
		"disabled":    {map[string]string{"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ""},
		"unsupported": {map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin is not supported, use otlp, console or none"},
		// The exporter would silently send to another address.
		"no scheme":            {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "h:1"}, "OTEL_EXPORTER_OTLP_ENDPOINT=h:1 is not a URL, use http://h:1"},
		"no scheme for traces": {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "h:1"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=h:1 is not a URL, use http://h:1"},
	} {
		e, err := newExporter(t.Context(), environ.Of(test.vars), io.Discard)
		if e != nil || test.err == "" && err != nil || test.err != "" && (err == nil || err.Error() != test.err) {
			t.Errorf("%s: %v, %v, want %q", name, e, err, test.err)
		}
	}
}

// TestMetricsWantTheirOwnWord verifies that metrics need their own variables. The common endpoint is often Jaeger,
// which does not accept metrics.
func TestMetricsWantTheirOwnWord(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		vars map[string]string
		on   bool
	}{
		"an endpoint for all":     {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, false},
		"an endpoint for metrics": {map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, true},
		"asked for":               {map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, true},
		"not wanted":              {map[string]string{"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, false},
		"disabled":                {map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, false},
	} {
		e, err := newMetricExporter(t.Context(), environ.Of(test.vars))
		if err != nil || (e != nil) != test.on {
			t.Errorf("%s: %v, %v, want on: %v", name, e, err, test.on)
		}
		if e != nil {
			_ = e.Shutdown(t.Context()) // no metrics were recorded
		}
	}
	if _, err := newMetricExporter(t.Context(), environ.Of(map[string]string{"OTEL_METRICS_EXPORTER": "prometheus"})); err == nil || err.Error() != "OTEL_METRICS_EXPORTER=prometheus is not supported, use otlp or none" {
		t.Errorf("error %v", err)
	}
}

func TestExportNoticeAppearsOnce(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	n := &exportNotice{w: &b}
	n.Handle(context.DeadlineExceeded)
	n.Handle(io.EOF)
	if got, want := b.String(), "workcell: cannot export traces or metrics: the collector did not respond in time\n"; got != want {
		t.Errorf("notices = %q, want %q", got, want)
	}
}
