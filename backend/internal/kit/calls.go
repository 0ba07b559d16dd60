// Package kit contains the shared code of all drivers. A [Driver] turns the methods of an engine into a
// [backend.SandboxBackend]. [Calls] admits calls until the driver is closed. It bounds, retries, and waits for calls to
// an engine, and maps their failures to errors safe to show to agents. The package also contains the engine-independent
// rules for a Spec, the default limits, checks of image configurations, and shared image pulls.
package kit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// CleanupTimeout bounds cleanup after a failure and work in the background.
const CleanupTimeout = 30 * time.Second

// Minimum and maximum pause between two attempts.
const (
	retryFirst = 5 * time.Millisecond
	retryMax   = 200 * time.Millisecond
)

// ErrSilent is the context's cause if a call ends because the engine does not respond.
var ErrSilent = errors.New("the engine does not respond")

// Options configure Calls. Drivers without an engine only need Name and Log.
type Options struct {
	Name     string               // driver name, the prefix of errors
	Log      *slog.Logger         //
	Tracer   trace.TracerProvider // creates the spans; nil means the provider of the span in the caller's context
	Limit    time.Duration        // maximum time for one call
	Patience time.Duration        // how long the engine may leave a call and all pings unanswered
	// Ping sends a request to check the connection to the engine.
	Ping func(context.Context) error
	// Context prepares the context of every call. If nil, the context is not changed.
	Context func(context.Context) context.Context
	// Native converts an error of the engine's client to a typed error. If nil, errors are not converted.
	Native func(error) error
	// Classify returns the sentinel error for an engine-specific error, or nil. A nil function returns nil for all errors.
	Classify func(error) error
}

// Calls manages the calls of one driver. It is safe for concurrent use.
type Calls struct {
	o       Options
	life    context.Context // canceled by Close to end pending calls and background work
	end     context.CancelCauseFunc
	pending sync.WaitGroup // active calls and background work
	closing error          // the error of calls after Close

	mu     sync.Mutex // guards closed
	closed bool
}

// New returns a Calls, open until Close.
func New(o Options) *Calls {
	c := &Calls{o: o, closing: fmt.Errorf("%s backend: %w", o.Name, backend.ErrClosed)}
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

// Span starts a span whose name starts with the driver's name, for example "docker.Create".
func (c *Calls) Span(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	name, attrs = c.o.Name+"."+name, append(attrs, telemetry.KeyBackend.String(c.o.Name))
	if c.o.Tracer != nil {
		return telemetry.StartWith(ctx, c.o.Tracer, name, attrs...)
	}
	return telemetry.Start(ctx, name, attrs...)
}

// Life returns a context, canceled by Close.
func (c *Calls) Life() context.Context { return c.life }

// begin admits a call. It returns an error if the driver is closed. The returned context ends when the driver is
// closed. The caller must call done.
func (c *Calls) begin(ctx context.Context) (_ context.Context, done func(), _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, c.closing
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", c.o.Name, err)
	}
	c.pending.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(c.closing) })
	return ctx, func() {
		stop()
		cancel(nil)
		c.pending.Done()
	}, nil
}

// Background runs f in a goroutine, and Close waits for it. f performs cleanup, so Close does not cancel f's context.
// CleanupTimeout bounds the context. Only an admitted call may use Background, because Close could otherwise have
// stopped waiting.
func (c *Calls) Background(ctx context.Context, f func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanupTimeout)
	c.pending.Go(func() {
		defer cancel()
		f(ctx)
	})
}

// Close ends pending calls and waits for them and for background work, for a bounded time. The first Close then calls
// release to free the calls' resources, and returns the error of release.
func (c *Calls) Close(release func() error) error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	c.end(c.closing)
	done := make(chan struct{})
	go func() { // ends with the last call; each call is bounded
		c.pending.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(CleanupTimeout):
		c.o.Log.Warn(c.o.Name + ": calls still running at close")
	}
	if !first {
		return nil
	}
	return release()
}

// Bound bounds one call to the engine by a time limit and by the engine's response to pings. An engine under load may
// need a long time for a call but still answers pings. If the engine hangs and answers nothing, the context ends with
// ErrSilent as the cause.
func (c *Calls) Bound(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if c.o.Context != nil {
		ctx = c.o.Context(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ctx, stop := context.WithTimeout(ctx, limit)
	quiet, ping := c.o.Patience/3, c.o.Patience-c.o.Patience/3
	var watch *time.Timer
	armed := make(chan struct{})
	watch = time.AfterFunc(quiet, func() {
		<-armed
		pctx, done := context.WithTimeout(ctx, ping)
		defer done()
		if err := c.o.Ping(pctx); err != nil && ctx.Err() == nil {
			cancel(ErrSilent)
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

// Call makes one bounded call to the engine and maps the error. what names the call in errors.
func Call[T any](ctx context.Context, c *Calls, what string, f func(context.Context) (T, error)) (T, error) {
	cctx, cancel := c.Bound(ctx, c.o.Limit)
	defer cancel()
	v, err := f(cctx)
	return v, c.Fail(ctx, what, err)
}

// With binds an argument to a client's method, to pass the result to Call and Finish.
func With[A, T any](method func(context.Context, A) (T, error), arg A) func(context.Context) (T, error) {
	return func(ctx context.Context) (T, error) { return method(ctx, arg) }
}

// WithoutOptions is like With, for a method with options. It passes none.
func WithoutOptions[A, O, T any](
	method func(context.Context, A, ...O) (T, error), arg A,
) func(context.Context) (T, error) {
	return func(ctx context.Context) (T, error) { return method(ctx, arg) }
}

// Bind binds two arguments to a method without a result, to pass the method to Do.
func Bind[A, B any](method func(context.Context, A, B) error, a A, b B) func(context.Context) error {
	return func(ctx context.Context) error { return method(ctx, a, b) }
}

// Finish is like Call, for a request completed by the engine even if the caller gives up. Finish waits for the engine's
// response to allow the caller to remove the created object. If ctx ended, Finish returns the created object together
// with the context's error.
func Finish[T any](ctx context.Context, c *Calls, what string, f func(context.Context) (T, error)) (T, error) {
	if err := ctx.Err(); err != nil {
		var none T
		return none, c.Fail(ctx, what, err)
	}
	v, err := Call(context.WithoutCancel(ctx), c, what, f)
	if err == nil && ctx.Err() != nil {
		err = c.Fail(ctx, what, ctx.Err())
	}
	return v, err
}

// Do is like Call, for functions without a result.
func (c *Calls) Do(ctx context.Context, what string, f func(context.Context) error) error {
	_, err := Call(ctx, c, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

// Retry calls f until f reports done or ctx ends. If ctx ends, Retry returns the last error.
func (c *Calls) Retry(ctx context.Context, f func() (done bool, err error)) error {
	for begin := time.Now(); ; {
		done, err := f()
		if done {
			return err
		}
		pause := min(max(retryFirst, time.Since(begin)/5), retryMax) // grows with the elapsed time
		if !bound.Pause(ctx, pause) {
			return cmp.Or(err, c.Fail(ctx, "wait", ctx.Err()))
		}
	}
}
