package mcpserver

import (
	"cmp"
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
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// Values of network.transport.
const (
	transportPipe = "pipe"
	transportTCP  = "tcp"
)

// methodCall calls a tool.
const methodCall = "tools/call"

// toolError is the error.type of a call whose answer is an error of the tool.
const toolError = "tool_error"

// traced is middleware that makes a span of each request and measures it. The span belongs to the trace that the client
// names in _meta; then the one that the server itself is part of is a link.
func (s *Server) traced(transport string) mcp.Middleware {
	duration := telemetry.Histogram(semconv.MetricMCPOperation)
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			name, attrs := method, []attribute.KeyValue{semconv.MCPMethod.String(method), semconv.NetworkTransport.String(transport)}
			if p, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok && p != nil && method == methodCall && s.offers(p.Name) {
				name += " " + p.Name // another name is a client's own, and as long as it likes
				attrs = append(attrs, semconv.OperationName.String(semconv.ExecuteTool), semconv.ToolName.String(p.Name))
			}
			labels := attrs // of the metric: what has few values
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
			if refused := (*jsonrpc.Error)(nil); errors.As(err, &refused) {
				span.SetAttributes(semconv.StatusCode.String(strconv.FormatInt(refused.Code, 10)))
			}
			duration.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(labels...))
			return res, err
		}
	}
}

// offers reports whether a tool of this server may have that name.
func (s *Server) offers(name string) bool {
	return slices.ContainsFunc(s.defs, func(def toolspec.Definition) bool { return def.Name == name }) ||
		slices.Contains([]string{
			toolExecuteTask, toolGetFiles, toolCleanup, toolStatus, toolTaskStatus, toolTaskResult, toolTaskCancel,
		}, name)
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

// caller returns a context with the span that the request's _meta names (SEP-414), and a link to the one that it has
// without; ctx itself when the request names none.
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

// failureClass returns the error.type of an answer, empty when it is none of a failure.
func failureClass(res mcp.Result, err error) string {
	var refused *jsonrpc.Error
	switch call, ok := res.(*mcp.CallToolResult); {
	case errors.As(err, &refused):
		return strconv.FormatInt(refused.Code, 10)
	case err != nil:
		return cmp.Or(telemetry.Class(err), "internal")
	case ok && call != nil && call.IsError:
		return toolError
	}
	return ""
}

// measureSession measures a client's session that began at a time and ends now.
func measureSession(ctx context.Context, began time.Time, transport string) {
	telemetry.Histogram(semconv.MetricMCPSession).Record(ctx, time.Since(began).Seconds(),
		metric.WithAttributes(semconv.NetworkTransport.String(transport)))
}
