package containerd

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/containerd/log"
	"go.opentelemetry.io/otel/trace"
)

// reconnectPause is the maximum pause between attempts to connect to an unavailable containerd.
const reconnectPause = 2 * time.Second

// muted returns a context in which containerd's client and the CNI library record no spans and write no logs. They use
// the process's global tracer and standard error, and their output would contain raw IDs, host paths, and addresses of
// registries.
func muted(ctx context.Context) context.Context {
	ctx = log.WithLogger(ctx, silent(log.L.Logger))
	var (
		t trace.TraceID
		s trace.SpanID
	)
	_, _ = rand.Read(t[:]) // always succeeds
	_, _ = rand.Read(s[:])
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: t, SpanID: s}))
}

// silent returns a logger of package log without output. The zero value only logs panics.
func silent[T any, L interface {
	*T
	WithContext(context.Context) *log.Entry
}](L) *log.Entry {
	return L(new(T)).WithContext(context.Background())
}
