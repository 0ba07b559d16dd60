package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/log"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

const (
	// cleanupTimeout bounds what is done after a failure or beside a caller.
	cleanupTimeout = 30 * time.Second
	// reconnectPause is the longest pause between attempts to reach a containerd that is away.
	reconnectPause = 2 * time.Second
)

// errSilent is the cause of a call's end when containerd answers nothing at all any more.
var errSilent = errors.New("containerd answers nothing")

// newClient makes a client, which connects when it is first used and again whenever it has to.
func newClient(o Options) (*ctrd.Client, error) {
	api, err := ctrd.New(o.Address, ctrd.WithDefaultNamespace(o.Namespace), ctrd.WithTimeout(reconnectPause))
	if err != nil { // the text quotes the address, which may be a path
		return nil, fmt.Errorf("containerd: Options.Address is not a socket's: %w", backend.ErrInvalid)
	}
	return api, nil
}

func (b *Backend) span(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	attrs = append(attrs, telemetry.KeyBackend.String(b.Name()))
	if b.opts.TracerProvider != nil {
		return telemetry.StartWith(ctx, b.opts.TracerProvider, name, attrs...)
	}
	return telemetry.Start(ctx, name, attrs...)
}

// muted gives a context in which containerd's client and the CNI library, which use the process's global tracer and
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

// silent gives a logger that logs nothing, of the type that package log uses: its zero value lets only panics through.
func silent[T any, L interface {
	*T
	WithContext(context.Context) *log.Entry
}](L) *log.Entry {
	return L(new(T)).WithContext(context.Background())
}

// bound limits one call of containerd: to the given time, and to containerd being alive. One under load may take long
// over a call but tells its version; one that hangs answers nothing, and then the call ends with errSilent as its
// context's cause.
func (b *Backend) bound(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(muted(ctx))
	ctx, stop := context.WithTimeout(ctx, limit)
	quiet, ping := b.opts.Patience/3, b.opts.Patience-b.opts.Patience/3
	var watch *time.Timer
	armed := make(chan struct{})
	watch = time.AfterFunc(quiet, func() {
		<-armed
		pctx, done := context.WithTimeout(ctx, ping)
		defer done()
		if _, err := b.api.Version(pctx); err != nil && ctx.Err() == nil {
			cancel(errSilent)
			return
		}
		if ctx.Err() == nil {
			watch.Reset(quiet)
		}
	})
	close(armed)
	return ctx, func() {
		watch.Stop()
		stop()
		cancel(nil)
	}
}

// call runs one call of containerd's API within bounds and maps its error. what names the call in errors.
func call[T any](ctx context.Context, b *Backend, what string, f func(context.Context) (T, error)) (T, error) {
	cctx, cancel := b.bound(ctx, b.opts.CallTimeout)
	defer cancel()
	v, err := f(cctx)
	return v, b.fail(ctx, what, err)
}

// finish is call for something that, once asked for, happens on the engine even when the asking is given up: it waits
// for the answer, so that what was made is known and can be removed. It returns what was made beside a context's error.
func finish[T any](ctx context.Context, b *Backend, what string, f func(context.Context) (T, error)) (T, error) {
	if err := ctx.Err(); err != nil {
		var none T
		return none, b.fail(ctx, what, err)
	}
	v, err := call(context.WithoutCancel(ctx), b, what, f)
	if err == nil && ctx.Err() != nil {
		err = b.fail(ctx, what, ctx.Err())
	}
	return v, err
}

// do is call without a result.
func (b *Backend) do(ctx context.Context, what string, f func(context.Context) error) error {
	_, err := call(ctx, b, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

const (
	retryFirst = 5 * time.Millisecond
	retryMax   = 200 * time.Millisecond
)

// retry repeats f until it is done or ctx ends, and then gives the last error.
func (b *Backend) retry(ctx context.Context, f func() (done bool, err error)) error {
	wait := retryFirst
	for {
		done, err := f()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = b.fail(ctx, "wait", ctx.Err())
			}
			return err
		case <-time.After(wait):
			wait = min(2*wait, retryMax)
		}
	}
}

// joinClose closes c and adds its error to err.
func joinClose(err error, c io.Closer) error {
	return errors.Join(err, c.Close())
}
