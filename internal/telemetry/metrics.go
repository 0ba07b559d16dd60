package telemetry

import (
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// Metrics of Workcell's own; those of the conventions are in package semconv.
const (
	MetricActive       = "workcell.sandbox.active"        // open in this process
	MetricOpenDuration = "workcell.sandbox.open.duration" // of session.Open
	MetricExecDuration = "workcell.sandbox.exec.duration" // of commands that were waited for
	MetricRemoved      = "workcell.sandbox.removed"
	MetricOOMKills     = "workcell.sandbox.oom_kills" // of commands, by the kernel
)

// Reasons of MetricRemoved.
const (
	RemovedClosed = "closed" // by its owner or the end of its run
	RemovedIdle   = "idle"
	RemovedOrphan = "orphan" // its process was gone, or its time over
	RemovedLost   = "lost"   // what was left of one that died
)

// Histogram returns a histogram of durations in seconds of the global meter provider.
func Histogram(name string) metric.Float64Histogram {
	h, err := otel.Meter(TracerName).Float64Histogram(name, metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(semconv.DurationBuckets()...))
	return mustBe(h, err)
}

// Counts returns a histogram of small numbers.
func Counts(name string) metric.Int64Histogram {
	h, err := otel.Meter(TracerName).Int64Histogram(name, metric.WithExplicitBucketBoundaries(0, 1, 2, 4, 8, 16, 32, 64, 128, 256))
	return mustBe(h, err)
}

// Counter returns a counter.
func Counter(name string) metric.Int64Counter {
	c, err := otel.Meter(TracerName).Int64Counter(name)
	return mustBe(c, err)
}

// UpDownCounter returns a counter that also goes down.
func UpDownCounter(name string) metric.Int64UpDownCounter {
	c, err := otel.Meter(TracerName).Int64UpDownCounter(name)
	return mustBe(c, err)
}

// mustBe panics for the one error that an instrument can have: that its name is not valid.
func mustBe[T any](v T, err error) T {
	if err != nil {
		panic(errors.Join(errors.New("telemetry"), err))
	}
	return v
}
