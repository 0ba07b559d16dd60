package otelgenai_test

import (
	"context"
	"fmt"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/otelgenai"
)

// A processor gives Genkit's spans OpenTelemetry's names, and removes prompts and answers.
func ExampleNewProcessor() {
	spans := tracetest.NewInMemoryExporter()
	next := sdktrace.NewSimpleSpanProcessor(spans)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(otelgenai.NewProcessor(next, otelgenai.Options{})))
	_, span := provider.Tracer("example").Start(context.Background(), "step")
	span.End()
	fmt.Println(spans.GetSpans()[0].Name)
	// Output: step
}
