package containerd

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/containerd/log"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const (
	cleanupTimeout = kit.CleanupTimeout
	// reconnectPause is the longest pause between attempts to reach a containerd that is away.
	reconnectPause = 2 * time.Second
)

// muted returns a context in which containerd's client and the CNI library, which use the process's global tracer and
// write to its standard error, record no spans and no log of their own: those would carry raw ids, host paths and
// addresses of registries.
func muted(ctx context.Context) context.Context {
	ctx = log.WithLogger(ctx, silent(log.L.Logger))
	var (
		t trace.TraceID
		s trace.SpanID
	)
	_, _ = rand.Read(t[:]) // never fails
	_, _ = rand.Read(s[:])
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: t, SpanID: s}))
}

// silent returns a logger that logs nothing, of the type that package log uses: its zero value lets only panics
// through.
func silent[T any, L interface {
	*T
	WithContext(context.Context) *log.Entry
}](L) *log.Entry {
	return L(new(T)).WithContext(context.Background())
}
