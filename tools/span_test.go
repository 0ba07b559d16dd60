package tools_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/tools"
)

// TestSpans verifies the trace of an agent run. It sets the process's tracer provider, so it is not parallel. It
// identifies spans of later tests by their run.
func TestSpans(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	old := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))
	defer otel.SetTracerProvider(old)
	r := newRig(t)
	model, _ := r.model(call("sandbox_exec", obj{"command": "echo $TRACEPARENT; echo canary-7f3a; exit 3"}), call("sandbox_fs_read", obj{"path": "none"}),
		call("sandbox_exec", obj{"command": "true"}), call("sandbox_exec", obj{"command": "true"}), call("sandbox_close", nil), say("done"))
	a := r.agent("traced", "---\nmodel: "+model+"\nsandbox: {mode: code, env: {TOKEN: canary-9c1d}}\n---\nx")
	if _, err := a.Run(context.Background(), nil, nil); err != nil {
		t.Fatal(err)
	}
	spans := exporter.GetSpans()
	byID := map[string]tracetest.SpanStub{}
	var root tracetest.SpanStub
	for _, s := range spans {
		byID[s.SpanContext.SpanID().String()] = s
		if s.Name == "invoke_agent traced" {
			root = s
		}
	}
	if root.Name == "" || root.Parent.IsValid() {
		t.Fatalf("no root among %d spans", len(spans))
	}
	attrs := map[string]string{}
	for _, kv := range root.Attributes {
		attrs[string(kv.Key)] = kv.Value.String()
	}
	if !strings.HasPrefix(attrs["workcell.run.id"], "run_") || attrs["workcell.agent.name"] != "traced" || attrs["workcell.model"] != model {
		t.Errorf("attributes %v", attrs)
	}
	path := func(s tracetest.SpanStub) string {
		names := s.Name
		for parent, ok := byID[s.Parent.SpanID().String()]; ok; parent, ok = byID[parent.Parent.SpanID().String()] {
			names = parent.Name + " > " + names
		}
		return names
	}
	var paths []string
	kills := 0
	for _, s := range spans {
		at := path(s)
		paths = append(paths, at)
		if s.SpanContext.TraceID() != root.SpanContext.TraceID() {
			t.Errorf("%s is in another trace", at)
		}
		if class, failed := toolFailure(s); failed != (s.Name == "sandbox_fs_read") || failed && class != "not_found" {
			t.Errorf("%s is marked %v, as %q", at, s.Status, class)
		}
		if strings.HasSuffix(at, "> session.KillExec") {
			kills++
		}
		if strings.HasPrefix(s.Name, "session.") || s.Name == "invoke_agent traced" {
			for _, kv := range s.Attributes {
				if strings.Contains(kv.Value.String(), "canary") || strings.Contains(kv.Value.String(), "echo") {
					t.Errorf("%s has %s = %s", s.Name, kv.Key, kv.Value.String())
				}
			}
		}
	}
	for _, want := range []string{
		"invoke_agent traced > agent:traced > sandbox_exec > session.Exec", "invoke_agent traced > agent:traced > sandbox_exec > session.Open",
		"invoke_agent traced > agent:traced > " + model, "invoke_agent traced > session.Close", "invoke_agent traced > traced",
	} {
		if !slices.Contains(paths, want) {
			t.Errorf("no span %s in\n%s", want, strings.Join(paths, "\n"))
		}
	}
	if kills > 1 {
		t.Errorf("%d spans of what sandbox_close ended", kills)
	}
	exporter.Reset()
	if _, err := a.Run(context.Background(), nil, &tools.RunOptions{Model: "nowhere/x"}); err == nil {
		t.Fatal("no error")
	}
	for _, s := range exporter.GetSpans() {
		if s.Name == "invoke_agent traced" && s.Status.Code != codes.Error {
			t.Errorf("status of a failed run: %+v", s.Status)
		}
	}
}

// toolFailure returns the error class in the span of a tool call, and whether the span is marked as failed.
func toolFailure(s tracetest.SpanStub) (class string, failed bool) {
	for _, kv := range s.Attributes {
		if kv.Key == "error.type" {
			class = kv.Value.AsString()
		}
	}
	return class, strings.HasPrefix(s.Name, "sandbox_") && s.Status.Code == codes.Error
}
