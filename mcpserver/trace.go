package mcpserver

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// Values of network.transport.
const (
	transportPipe = "pipe"
	transportTCP  = "tcp"
)

// methodCall is the method of tool calls.
const methodCall = "tools/call"

// toolError is the error.type of a call whose result is a tool error.
const toolError = "tool_error"

// traced is middleware to create a span for each request and to measure the duration. If the request's _meta has a
// span, the new span is a child of this span and links to the server's own span.
func traced(transport string, tools []tool) mcp.Middleware {
	duration := telemetry.Histogram(semconv.MetricMCPOperation)
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			name := method
			attrs := []attribute.KeyValue{semconv.MCPMethod.String(method), semconv.NetworkTransport.String(transport)}
			// Other names are chosen by the client and can have any length.
			if p, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok && p != nil && method == methodCall &&
				slices.ContainsFunc(tools, func(t tool) bool { return t.Name == p.Name }) {
				name += " " + p.Name
				attrs = append(attrs, semconv.OperationName.String(semconv.ExecuteTool), semconv.ToolName.String(p.Name))
			}
			labels := attrs // attributes with few values, for the metric
			if ss, ok := req.GetSession().(*mcp.ServerSession); ok && ss != nil {
				attrs = append(attrs, sessionAttributes(ss)...)
			}
			ctx, links := caller(ctx, req)
			ctx, span := otel.GetTracerProvider().Tracer(telemetry.TracerName).Start(ctx, name,
				trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attrs...), trace.WithLinks(links...))
			defer span.End()
			began := time.Now()
			res, err := next(ctx, method, req)
			if class := failureClass(res, err); class != "" {
				telemetry.Fail(span, class)
				labels = append(labels, semconv.ErrorType.String(class))
			}
			if refused, ok := errors.AsType[*jsonrpc.Error](err); ok {
				span.SetAttributes(semconv.StatusCode.String(strconv.FormatInt(refused.Code, 10)))
			}
			duration.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(labels...))
			return res, err
		}
	}
}

func sessionAttributes(ss *mcp.ServerSession) (attrs []attribute.KeyValue) {
	if id := ss.ID(); id != "" {
		attrs = append(attrs, telemetry.Text(semconv.MCPSession, id))
	}
	if p := ss.InitializeParams(); p != nil {
		attrs = append(attrs, telemetry.Text(semconv.MCPProtocol, p.ProtocolVersion))
	}
	return attrs
}

// caller returns a context with the span in the request's _meta (SEP-414), and a link to the span in ctx. If the
// request has no span, caller returns ctx.
func caller(ctx context.Context, req mcp.Request) (context.Context, []trace.Link) {
	p := req.GetParams()
	if v := reflect.ValueOf(p); !v.IsValid() || v.IsNil() {
		return ctx, nil
	}
	meta, carrier := p.GetMeta(), propagation.MapCarrier{}
	for _, key := range []string{"traceparent", "tracestate"} {
		if text, ok := meta[key].(string); ok {
			carrier[key] = text
		}
	}
	ambient := trace.SpanContextFromContext(ctx)
	theirs := propagation.TraceContext{}.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), carrier)
	switch {
	case !trace.SpanContextFromContext(theirs).IsValid():
		return ctx, nil
	case !ambient.IsValid():
		return theirs, nil
	}
	return theirs, []trace.Link{{SpanContext: ambient}}
}

// failureClass returns the error.type of an answer. It is empty for a successful answer.
func failureClass(res mcp.Result, err error) string {
	var refused *jsonrpc.Error
	switch call, ok := res.(*mcp.CallToolResult); {
	case errors.As(err, &refused):
		return strconv.FormatInt(refused.Code, 10)
	case err != nil:
		return telemetry.Class(err)
	case ok && call != nil && call.IsError:
		return toolError
	}
	return ""
}

// measureSession records the duration of a client's session from began until now.
func measureSession(ctx context.Context, began time.Time, transport string) {
	telemetry.Histogram(semconv.MetricMCPSession).Record(ctx, time.Since(began).Seconds(),
		metric.WithAttributes(semconv.NetworkTransport.String(transport)))
}
