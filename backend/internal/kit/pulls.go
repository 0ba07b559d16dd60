package kit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Pulls shares one pull among all callers for the same image. A pull is canceled when the last waiter leaves.
type Pulls struct {
	calls *Calls
	limit time.Duration

	mu      sync.Mutex // guards running and the waiters of each fetch; never held during a call
	running map[string]*fetch
}

// NewPulls returns a Pulls. Each pull takes at most limit. calls counts pulls as pending work, because a pull may
// continue for a moment after the last waiter left.
func NewPulls(calls *Calls, limit time.Duration) *Pulls {
	return &Pulls{calls: calls, limit: limit, running: map[string]*fetch{}}
}

// fetcher pulls the image of a plan. The context ends after the limit, or when the last waiter leaves. It may call
// report at any time. report never blocks: a slow waiter loses reports and does not delay other waiters.
type fetcher func(ctx context.Context, p *Plan, report func(backend.PullProgress)) error

// fetch is a running pull.
type fetch struct {
	ref     string
	done    chan struct{} // closed at the end, after err is set
	err     error
	cancel  context.CancelFunc
	waiters map[chan backend.PullProgress]struct{}
}

// wait pulls the plan's image, or waits for a running pull of the same image.
func (ps *Pulls) wait(ctx context.Context, p *Plan, get fetcher) (err error) {
	ctx, span := ps.calls.Span(ctx, telemetry.SpanDriverPull, telemetry.Text(telemetry.KeyImage, p.Image))
	defer func() { telemetry.End(span, err) }()
	report := p.Spec.OnPull
	if report == nil {
		report = func(backend.PullProgress) {}
	}
	f, progress := ps.join(ctx, p, get)
	defer ps.leave(f, progress)
	for {
		select {
		case pr := <-progress:
			report(pr)
		case <-f.done:
			for len(progress) > 0 {
				report(<-progress)
			}
			return f.err
		case <-ctx.Done():
			return ps.calls.Fail(ctx, "pull "+p.Image, ctx.Err())
		}
	}
}

func (ps *Pulls) join(ctx context.Context, p *Plan, get fetcher) (*fetch, chan backend.PullProgress) {
	progress := make(chan backend.PullProgress, 64)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if f, ok := ps.running[p.Ref]; ok {
		f.waiters[progress] = struct{}{}
		return f, progress
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ps.limit)
	waiters := map[chan backend.PullProgress]struct{}{progress: {}}
	f := &fetch{ref: p.Ref, done: make(chan struct{}), cancel: cancel, waiters: waiters}
	ps.running[p.Ref] = f
	ps.calls.pending.Go(func() { // canceled when the last waiter leaves, or after the limit
		err := get(ctx, p, func(pr backend.PullProgress) { ps.publish(f, pr) })
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = ps.calls.Error("pull "+p.Image, backend.ErrImage, fmt.Sprintf("not finished within %v", ps.limit))
		}
		cancel()
		ps.mu.Lock()
		ps.forget(f)
		ps.mu.Unlock()
		f.err = err
		close(f.done)
	})
	return f, progress
}

// leave must be called once per join. After the last waiter leaves a fetch, later callers start a new fetch.
func (ps *Pulls) leave(f *fetch, progress chan backend.PullProgress) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(f.waiters, progress)
	if len(f.waiters) == 0 {
		f.cancel()
		ps.forget(f)
	}
}

// forget lets the next caller start a new fetch. The caller must hold the mutex.
func (ps *Pulls) forget(f *fetch) {
	if ps.running[f.ref] == f {
		delete(ps.running, f.ref)
	}
}

func (ps *Pulls) publish(f *fetch, pr backend.PullProgress) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for w := range f.waiters {
		select {
		case w <- pr:
		default: // the waiter is slow; the next report contains newer values
		}
	}
}
