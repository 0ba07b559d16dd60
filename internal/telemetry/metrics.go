package telemetry

import (
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// Workcell's own metrics. The metrics of the OpenTelemetry conventions are in package semconv.
const (
	MetricActive       = "workcell.sandbox.active"        // open sandboxes of this process
	MetricOpenDuration = "workcell.sandbox.open.duration" // duration of session.Open
	MetricExecDuration = "workcell.sandbox.exec.duration" // duration of commands that a caller waited for
	MetricRemoved      = "workcell.sandbox.removed"
	MetricOOMKills     = "workcell.sandbox.oom_kills" // commands ended by the kernel's OOM killer
)

// Reasons for MetricRemoved.
const (
	RemovedClosed = "closed" // by the owner or at the end of its run
	RemovedIdle   = "idle"
	RemovedOrphan = "orphan" // the process had ended, or the time had expired
	RemovedLost   = "lost"   // the remains of a lost sandbox
)

// Histogram returns a histogram of durations in seconds, from the global meter provider.
func Histogram(name string) metric.Float64Histogram {
	h, err := otel.Meter(TracerName).Float64Histogram(name, metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(semconv.DurationBuckets()...))
	return mustBe(h, err)
}

// Counts returns a histogram of small numbers.
func Counts(name string) metric.Int64Histogram {
	h, err := otel.Meter(TracerName).Int64Histogram(name, metric.WithExplicitBucketBoundaries(0, 1, 2, 4, 8, 16, 32, 64,
		128, 256))
	return mustBe(h, err)
}

// Counter returns a counter.
func Counter(name string) metric.Int64Counter {
	c, err := otel.Meter(TracerName).Int64Counter(name)
	return mustBe(c, err)
}

// UpDownCounter returns a counter that can decrease.
func UpDownCounter(name string) metric.Int64UpDownCounter {
	c, err := otel.Meter(TracerName).Int64UpDownCounter(name)
	return mustBe(c, err)
}

// mustBe panics if the name of an instrument is invalid, which is the only possible error.
func mustBe[T any](v T, err error) T {
	if err != nil {
		panic(errors.Join(errors.New("telemetry"), err))
	}
	return v
}
