package mcpserver_test

import (
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
)

// TestRequestsJoinTheClientsTrace verifies that the span of a request is in the trace of the request's _meta, and a
// refusal is an event of the span. It sets the process's tracer provider, so it is not parallel.
func TestRequestsJoinTheClientsTrace(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	old := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))
	defer otel.SetTracerProvider(old)
	const theirs = "0123456789abcdef0123456789abcdef"
	policy := mcpserver.DefaultPolicy()
	policy.Commands.Refuse = []mcpserver.CommandRule{{Name: "no-push", Pattern: "git push"}}
	s := newServer(t, newManager(t), &mcpserver.Options{Policy: &policy})
	cs := connectPipes(t, s, nil)
	call := func(name string, args map[string]any) {
		t.Helper()
		_, err := cs.CallTool(t.Context(), &mcp.CallToolParams{
			Meta: mcp.Meta{"traceparent": "00-" + theirs + "-0123456789abcdef-01"}, Name: name, Arguments: args,
		})
		if err != nil && name != "nothing" {
			t.Fatal(err)
		}
	}
	call("session_status", map[string]any{})
	call("sandbox_exec", map[string]any{"command": "git push --force secret"})
	call("nothing", map[string]any{})
	checktest.Must(t, cs.Ping(t.Context(), nil))
	spans := map[string]tracetest.SpanStub{}
	for _, span := range exporter.GetSpans() {
		if span.SpanKind == trace.SpanKindServer {
			spans[span.Name] = span
		}
	}
	for name, want := range map[string]map[string]string{
		"tools/call session_status": {"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "session_status", "network.transport": "pipe"},
		"tools/call sandbox_exec":   {"gen_ai.tool.name": "sandbox_exec", "error.type": "tool_error"},
		"tools/call":                {"mcp.method.name": "tools/call", "rpc.response.status_code": "-32602"},
	} {
		span, ok := spans[name]
		if !ok {
			t.Errorf("no span %s among %d", name, len(spans))
			continue
		}
		if span.SpanContext.TraceID().String() != theirs || span.Parent.SpanID().String() != "0123456789abcdef" {
			t.Errorf("%s is in trace %s below %s", name, span.SpanContext.TraceID(), span.Parent.SpanID())
		}
		got := map[string]string{}
		for _, kv := range span.Attributes {
			got[string(kv.Key)] = kv.Value.String()
		}
		for key, value := range want {
			if got[key] != value {
				t.Errorf("%s: %s is %q, want %q", name, key, got[key], value)
			}
		}
		if failed := name != "tools/call session_status"; failed != (span.Status.Code == codes.Error) {
			t.Errorf("%s: status %v", name, span.Status)
		}
	}
	if own, ok := spans["ping"]; !ok || own.SpanContext.TraceID().String() == theirs {
		t.Errorf("a request without traceparent: %v", own)
	}
	events := spans["tools/call sandbox_exec"].Events
	if len(events) != 1 || events[0].Name != "workcell.refused" || len(events[0].Attributes) != 1 || events[0].Attributes[0].Value.AsString() != "no-push" {
		t.Errorf("events %+v", events)
	}
}
