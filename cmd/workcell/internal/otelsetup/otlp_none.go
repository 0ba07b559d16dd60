//go:build no_otlp

package otelsetup

import (
	"context"
	"errors"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

var errNoOTLP = errors.New("OTLP exporters are not included in this build (build tag no_otlp)")

func newTraceClient(context.Context, string) (sdktrace.SpanExporter, error) { return nil, errNoOTLP }

func newMetricClient(context.Context, string) (sdkmetric.Exporter, error) { return nil, errNoOTLP }
