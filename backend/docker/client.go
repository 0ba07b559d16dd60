package docker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/docker/docker/client"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/workcell-dev/workcell/backend"
)

const (
	// cleanupTimeout bounds what is done after a failure or beside a caller.
	cleanupTimeout = 30 * time.Second
	// attachTimeout bounds the opening of a stream: an engine whose earlier client stopped reading answers nothing.
	attachTimeout = 10 * time.Second
)

// errSilent is the cause of a call's end when the engine answers nothing at all any more.
var errSilent = errors.New("the engine answers nothing")

func newClient(o Options) (*client.Client, error) {
	opts := []client.Opt{
		client.WithAPIVersionNegotiation(),
		// Workcell has spans of its own; the client's would carry raw ids and image names in their paths.
		client.WithTraceProvider(noop.NewTracerProvider()),
		client.WithUserAgent("workcell"),
	}
	if o.TLS != nil {
		tr := &http.Transport{TLSClientConfig: o.TLS.Clone(), MaxIdleConns: 6, IdleConnTimeout: 30 * time.Second}
		opts = append(opts, client.WithHTTPClient(&http.Client{Transport: tr, CheckRedirect: client.CheckRedirect}))
	}
	if o.Host != "" {
		opts = append(opts, client.WithHost(o.Host))
	}
	api, err := client.NewClientWithOpts(opts...)
	if err != nil { // the text quotes the address, which may be a path
		return nil, fmt.Errorf("docker: Options.Host is not an engine's address: %w", backend.ErrInvalid)
	}
	return api, nil
}

// bound limits one call of the engine: to the given time, and to the engine being alive. An engine under load may take
// long over a call but answers pings; one that hangs answers nothing, and then the call ends with errSilent as its
// context's cause.
func (b *Backend) bound(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	ctx, stop := context.WithTimeout(ctx, limit)
	quiet, ping := b.opts.Patience/3, b.opts.Patience-b.opts.Patience/3
	var watch *time.Timer
	armed := make(chan struct{})
	watch = time.AfterFunc(quiet, func() {
		<-armed
		pctx, done := context.WithTimeout(ctx, ping)
		defer done()
		if _, err := b.api.Ping(pctx); err != nil && ctx.Err() == nil {
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

// call runs one call of the engine's API within bounds and maps its error. what names the call in errors.
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

// dial opens a raw connection to the engine, for streams.
func (b *Backend) dial(ctx context.Context) (net.Conn, error) {
	if b.opts.TLS == nil {
		return b.api.Dialer()(ctx)
	}
	u, err := client.ParseHostURL(b.api.DaemonHost())
	if err != nil {
		return nil, err
	}
	// The client's own dialer for TLS ignores its context.
	return (&tls.Dialer{Config: b.opts.TLS.Clone()}).DialContext(ctx, "tcp", u.Host)
}

// joinClose closes c and adds its error to err.
func joinClose(err error, c io.Closer) error {
	return errors.Join(err, c.Close())
}
