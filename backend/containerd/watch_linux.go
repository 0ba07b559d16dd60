package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// watchLimit is longer than anybody watches: a watch ends with its context, or with the engine.
const watchLimit = 10 * 365 * 24 * time.Hour

// Watch listens to the engine's events about containers and tasks of our namespace, of which not all need match filter.
func (b *Backend) Watch(ctx context.Context, _ backend.Filter, changed func()) error {
	ctx, done, err := b.d.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	bounded, cancel := b.d.calls.Bound(ctx, watchLimit)
	defer cancel()
	msgs, errs := b.d.api.EventService().Subscribe(bounded,
		"namespace=="+strconv.Quote(b.d.opts.Namespace)+`,topic~="^/containers/(create|delete)$"`,
		"namespace=="+strconv.Quote(b.d.opts.Namespace)+`,topic~="^/tasks/(start|exit|delete|paused|resumed)$"`)
	select {
	case err := <-errs: // before it listens
		return b.d.watchFailed(ctx, err)
	default:
	}
	changed()
	for {
		select {
		case <-msgs:
			changed()
		case err := <-errs:
			return b.d.watchFailed(ctx, err)
		}
	}
}

// watchFailed returns why a watch ended. An engine that ends takes leave with the end of its answer.
func (b *driver) watchFailed(ctx context.Context, err error) error {
	if ctx.Err() == nil && (err == nil || errors.Is(err, io.EOF)) {
		return fmt.Errorf("containerd: the engine closed the event stream: %w", backend.ErrUnavailable)
	}
	return b.calls.Fail(ctx, "events", err)
}
