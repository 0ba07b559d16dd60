package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// watchLimit is longer than anybody watches: a watch ends with its context, or with the engine.
const watchLimit = 10 * 365 * 24 * time.Hour

// Watch listens to the engine's events about the containers that match filter.
func (b *Backend) Watch(ctx context.Context, filter backend.Filter, changed func()) error {
	ctx, done, err := b.d.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	bounded, cancel := b.d.calls.Bound(ctx, watchLimit)
	defer cancel()
	args := filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)))
	for _, action := range []events.Action{
		events.ActionCreate, events.ActionStart, events.ActionDie, events.ActionPause, events.ActionUnPause, events.ActionDestroy,
	} {
		args.Add("event", string(action))
	}
	for label, want := range kit.FilterLabels(filter) {
		args.Add("label", label+"="+want)
	}
	msgs, errs := b.d.api.Events(bounded, events.ListOptions{Filters: args})
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
	if ctx.Err() == nil && errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("docker: the engine closed the event stream: %w", backend.ErrUnavailable)
	}
	return b.calls.Fail(ctx, "events", err)
}
