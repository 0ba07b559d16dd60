// Package kit has what every driver does in the same way: it makes a [Driver] of what is an engine's own, admits calls
// until the driver is closed, bounds, repeats and waits for calls of an engine, and maps their failures to errors that
// are fit for agents. It has the rules of a Spec that no engine changes, the defaults of limits, what is taken from an
// image's configuration, and pulls that callers share.
package kit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// CleanupTimeout bounds what is done after a failure or beside a caller.
const CleanupTimeout = 30 * time.Second

// Pauses between two attempts.
const (
	retryFirst = 5 * time.Millisecond
	retryMax   = 200 * time.Millisecond
)

// ErrSilent is the cause of a call's end when the engine does not respond at all.
var ErrSilent = errors.New("the engine does not respond")

// Options configure Calls. Only Name and Log are required of a driver without an engine.
type Options struct {
	Name     string               // the driver's, which begins its errors
	Log      *slog.Logger         //
	Tracer   trace.TracerProvider // makes the spans; nil is that of the span in the caller's context
	Limit    time.Duration        // of one call
	Patience time.Duration        // how long the engine may answer nothing, not even Ping
	// Ping asks the engine for a sign of life.
	Ping func(context.Context) error
	// Context prepares the context of every call; nil leaves it.
	Context func(context.Context) context.Context
	// Native turns an error of the engine's client into one with a type; nil leaves it.
	Native func(error) error
	// Classify returns the sentinel for an error that only this engine has, or nil; nil is none.
	Classify func(error) error
}

// Calls are the calls of one driver. Its methods may be called concurrently.
type Calls struct {
	o       Options
	life    context.Context // ends with Close, so that pending calls and background work end
	end     context.CancelCauseFunc
	pending sync.WaitGroup // calls and background work under way
	closing error          // what calls get after Close

	mu     sync.Mutex // guards closed
	closed bool
}

// New returns Calls that admit until Close.
func New(o Options) *Calls {
	c := &Calls{o: o, closing: fmt.Errorf("%s backend: %w", o.Name, backend.ErrClosed)}
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

// Span begins a span with the driver's name before its own: "docker.Create".
func (c *Calls) Span(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	name, attrs = c.o.Name+"."+name, append(attrs, telemetry.KeyBackend.String(c.o.Name))
	if c.o.Tracer != nil {
		return telemetry.StartWith(ctx, c.o.Tracer, name, attrs...)
	}
	return telemetry.Start(ctx, name, attrs...)
}

// Life ends with Close.
func (c *Calls) Life() context.Context { return c.life }

// Begin admits a call: it fails once the driver is closed, and returns a context that ends with the driver. The caller
// must call done.
func (c *Calls) Begin(ctx context.Context) (_ context.Context, done func(), _ error) {
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

// Background runs f beside the caller; Close waits for it. f gets a context that Close does not end, because it cleans
// up, and that is bounded. Only a call that is under way itself may use it.
func (c *Calls) Background(ctx context.Context, f func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanupTimeout)
	c.pending.Go(func() {
		defer cancel()
		f(ctx)
	})
}

// Close ends pending calls and waits, for a bounded time, for them and for the background. The first Close then calls
// release, which frees what calls need, and returns its error.
func (c *Calls) Close(release func() error) error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	c.end(c.closing)
	done := make(chan struct{})
	go func() { // ends with the last call, each of which is bounded
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

// Bound limits one call of the engine: to the given time, and to the engine being alive. An engine under load may take
// long over a call but answers pings; one that hangs answers nothing, and then the call ends with ErrSilent as its
// context's cause.
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

// Call runs one call of the engine within bounds and maps its error. what names the call in errors.
func Call[T any](ctx context.Context, c *Calls, what string, f func(context.Context) (T, error)) (T, error) {
	cctx, cancel := c.Bound(ctx, c.o.Limit)
	defer cancel()
	v, err := f(cctx)
	return v, c.Fail(ctx, what, err)
}

// With returns a client's method with its argument, for Call and Finish.
func With[A, T any](method func(context.Context, A) (T, error), arg A) func(context.Context) (T, error) {
	return func(ctx context.Context) (T, error) { return method(ctx, arg) }
}

// Finish is Call for something that, once asked for, happens on the engine even when the asking is given up: it waits
// for the answer, so that what was made is known and can be removed. It returns what was made beside a context's error.
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

// Do is Call without a result.
func (c *Calls) Do(ctx context.Context, what string, f func(context.Context) error) error {
	_, err := Call(ctx, c, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

// Retry repeats f until it is done or ctx ends, and then returns the last error.
func (c *Calls) Retry(ctx context.Context, f func() (done bool, err error)) error {
	for begin := time.Now(); ; {
		done, err := f()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = c.Fail(ctx, "wait", ctx.Err())
			}
			return err
		case <-time.After(min(max(retryFirst, time.Since(begin)/5), retryMax)): // the longer it takes, the less a moment counts
		}
	}
}
