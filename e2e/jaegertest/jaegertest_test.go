package jaegertest_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/workcell-dev/workcell/e2e/jaegerapi"
	"github.com/workcell-dev/workcell/e2e/jaegertest"
)

// What goes in over OTLP, by either protocol, comes out of the query API; two
// instances run side by side and do not mix.
func TestSpansComeBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	root := filepath.Join("..", "..")
	one, other := jaegertest.Start(t, root), jaegertest.Start(t, root)
	for name, client := range map[string]otlptrace.Client{
		"grpc": otlptracegrpc.NewClient(otlptracegrpc.WithInsecure(), otlptracegrpc.WithEndpoint(one.OTLPGRPC)),
		"http": otlptracehttp.NewClient(otlptracehttp.WithInsecure(), otlptracehttp.WithEndpoint(one.OTLPHTTP)),
	} {
		t.Run(name, func(t *testing.T) {
			id := send(ctx, t, client, name)
			got := one.WaitTrace(ctx, t, id, func(tr *jaegerapi.Trace) bool { return len(tr.Spans) == 3 })
			var tree strings.Builder
			if err := got.WriteTree(&tree, "test.via"); err != nil {
				t.Fatal(err)
			}
			var names []string
			for line := range strings.Lines(tree.String()) {
				names = append(names, strings.TrimSpace(line[strings.LastIndex(line, "ms")+2:]))
			}
			for _, want := range []string{"parent  via=" + name, "├─ first", "└─ second"} {
				if !strings.Contains(tree.String(), want) {
					t.Errorf("no %q in %q", want, names)
				}
			}
			if s := got.Roots[0].Children[1]; s.Events[0].Tags["event"] != "it happened" || s.Service != "jaegertest" {
				t.Errorf("second is %+v", s)
			}
			if _, err := other.API.Trace(ctx, id); !errors.Is(err, jaegerapi.ErrNotFound) {
				t.Errorf("the other instance: %v", err)
			}
			found, err := one.API.Find(ctx, jaegerapi.Search{
				Service: "jaegertest", Operation: "parent", Tags: map[string]string{"test.via": name}, Since: time.Now().Add(-time.Minute),
			})
			if err != nil || len(found) != 1 || found[0].ID != id {
				t.Errorf("find: %v, %v", found, err)
			}
		})
	}
	if services, err := one.API.Services(ctx); err != nil || strings.Join(services, " ") != "jaegertest" {
		t.Errorf("services %v, %v", services, err)
	}
}

func send(ctx context.Context, t *testing.T, client otlptrace.Client, via string) string {
	t.Helper()
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	provider := trace.NewTracerProvider(trace.WithSyncer(exporter),
		trace.WithResource(resource.NewSchemaless(attribute.String("service.name", "jaegertest"))))
	tracer := provider.Tracer("test")
	pctx, parent := tracer.Start(ctx, "parent")
	parent.SetAttributes(attribute.String("test.via", via))
	_, first := tracer.Start(pctx, "first")
	first.End()
	_, second := tracer.Start(pctx, "second")
	second.AddEvent("it happened")
	second.End()
	parent.End()
	if err := provider.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	return parent.SpanContext().TraceID().String()
}
