package kit

import (
	"context"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Pulls shares the fetch of one image among all who want it at a time. A fetch ends early when nobody waits any more. The
// zero value is ready.
type Pulls struct {
	mu      sync.Mutex // guards running and the fetches' waiters; never held across a call
	running map[string]*fetch
}

// Pull is a request for an image.
type Pull struct {
	Ref      string                     // what is fetched once for all
	Name     string                     // of the image, for people
	Limit    time.Duration              // of the fetch
	Progress func(backend.PullProgress) // called on the caller's own goroutine; may be nil
	// Fetch gets the image. Its context ends with Limit, or when nobody waits any more. It may call report at any time,
	// which never waits: a slow waiter loses reports and delays nobody.
	Fetch func(ctx context.Context, report func(backend.PullProgress)) error
}

// fetch is a pull under way.
type fetch struct {
	done    chan struct{} // closed at the end, after err is set
	err     error
	cancel  context.CancelFunc
	waiters map[chan backend.PullProgress]struct{}
}

// Wait fetches an image, or waits for a fetch of the same that is under way. c counts the fetch, which may outlast its
// waiters for a moment.
func (ps *Pulls) Wait(ctx context.Context, c *Calls, p Pull) (err error) {
	ctx, span := c.Span(ctx, telemetry.SpanDriverPull, telemetry.Text(telemetry.KeyImage, p.Name))
	defer func() { telemetry.End(span, err) }()
	if p.Progress == nil {
		p.Progress = func(backend.PullProgress) {}
	}
	f, progress := ps.join(ctx, c, p)
	defer ps.leave(f, progress)
	for {
		select {
		case pr := <-progress:
			p.Progress(pr)
		case <-f.done:
			for len(progress) > 0 {
				p.Progress(<-progress)
			}
			return f.err
		case <-ctx.Done():
			return c.Fail(ctx, "pull "+p.Name, ctx.Err())
		}
	}
}

func (ps *Pulls) join(ctx context.Context, c *Calls, p Pull) (*fetch, chan backend.PullProgress) {
	progress := make(chan backend.PullProgress, 64)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if f, ok := ps.running[p.Ref]; ok {
		f.waiters[progress] = struct{}{}
		return f, progress
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Limit)
	f := &fetch{done: make(chan struct{}), cancel: cancel, waiters: map[chan backend.PullProgress]struct{}{progress: {}}}
	if ps.running == nil {
		ps.running = map[string]*fetch{}
	}
	ps.running[p.Ref] = f
	c.pending.Go(func() { // ended by cancel, when the last waiter leaves, or by its limit
		err := p.Fetch(ctx, func(pr backend.PullProgress) { ps.publish(f, pr) })
		cancel()
		ps.mu.Lock()
		if ps.running[p.Ref] == f {
			delete(ps.running, p.Ref)
		}
		ps.mu.Unlock()
		f.err = err
		close(f.done)
	})
	return f, progress
}

// leave must be called once per join. Nobody joins a fetch that its last waiter gave up.
func (ps *Pulls) leave(f *fetch, progress chan backend.PullProgress) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(f.waiters, progress)
	if len(f.waiters) > 0 {
		return
	}
	f.cancel()
	for ref, r := range ps.running {
		if r == f {
			delete(ps.running, ref)
		}
	}
}

func (ps *Pulls) publish(f *fetch, pr backend.PullProgress) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for w := range f.waiters {
		select {
		case w <- pr:
		default: // the waiter is behind; the next report says as much
		}
	}
}
