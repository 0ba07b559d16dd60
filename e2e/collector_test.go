package e2e

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/workcell-dev/workcell/e2e/jaegerapi"
)

// collector receives OTLP over gRPC, like a collector or Jaeger.
type collector struct {
	coltracepb.UnimplementedTraceServiceServer
	address string

	mu    sync.Mutex
	spans map[string][]*jaegerapi.Span // by trace
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c := &collector{address: l.Addr().String(), spans: map[string][]*jaegerapi.Span{}}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	coltracepb.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(l) }() // stopped by Stop
	t.Cleanup(server.Stop)
	return c
}

// Export implements the trace service of OTLP.
func (c *collector) Export(_ context.Context, req *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range req.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				id := hex.EncodeToString(s.TraceId)
				c.spans[id] = append(c.spans[id], span(s))
			}
		}
	}
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

func span(s *tracepb.Span) *jaegerapi.Span {
	start := time.Unix(0, int64(s.StartTimeUnixNano)) // #nosec G115 -- a time of this century
	out := &jaegerapi.Span{
		ID: hex.EncodeToString(s.SpanId), ParentID: hex.EncodeToString(s.ParentSpanId), Name: s.Name,
		// #nosec G115 -- as above.
		Start: start, Duration: time.Unix(0, int64(s.EndTimeUnixNano)).Sub(start), Tags: map[string]string{},
	}
	for _, a := range s.Attributes {
		out.Tags[a.Key] = text(a.Value)
	}
	return out
}

// text returns an attribute's value in Jaeger's format.
func text(v *commonpb.AnyValue) string {
	switch v := v.Value.(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10)
	case *commonpb.AnyValue_BoolValue:
		return strconv.FormatBool(v.BoolValue)
	}
	return fmt.Sprint(v)
}

// wait returns a complete trace. The command sends the last spans before it exits.
func (c *collector) wait(t *testing.T, id string) *jaegerapi.Trace {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		c.mu.Lock()
		tree := jaegerapi.NewTrace(id, c.spans[id])
		c.mu.Unlock()
		if complete(tree) {
			return tree
		}
		if time.Now().After(deadline) {
			t.Fatalf("the collector has %d roots of trace %s, want one of the workflow", len(tree.Roots), id)
		}
	}
}
