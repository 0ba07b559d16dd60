package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	imagetypes "github.com/docker/docker/api/types/image"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// pulls shares the fetch of one image among all who want it at a time. A fetch ends early when nobody waits any more.
type pulls struct {
	mu      sync.Mutex // guards running and the fetches' waiters; never held across a call
	running map[string]*fetch
}

// fetch is a pull under way.
type fetch struct {
	done    chan struct{} // closed at the end, after err is set
	err     error
	cancel  context.CancelFunc
	waiters map[chan backend.PullProgress]struct{}
}

// pull fetches the plan's image, or waits for another caller's fetch of the same. OnPull is called on the caller's own
// goroutine; a slow one loses reports and delays nobody.
func (b *Backend) pull(ctx context.Context, p *plan) (err error) {
	ctx, span := b.span(ctx, telemetry.SpanDockerPull, telemetry.Text(telemetry.KeyImage, p.imageName()))
	defer func() { telemetry.End(span, err) }()
	f, progress := b.joinFetch(ctx, p)
	defer b.leaveFetch(f, progress)
	for {
		select {
		case pr := <-progress:
			p.report(pr)
		case <-f.done:
			for len(progress) > 0 {
				p.report(<-progress)
			}
			return f.err
		case <-ctx.Done():
			return b.fail(ctx, "pull "+p.imageName(), ctx.Err())
		}
	}
}

func (p *plan) report(pr backend.PullProgress) {
	if p.spec.OnPull != nil {
		p.spec.OnPull(pr)
	}
}

func (b *Backend) joinFetch(ctx context.Context, p *plan) (*fetch, chan backend.PullProgress) {
	progress := make(chan backend.PullProgress, 64)
	b.pulls.mu.Lock()
	defer b.pulls.mu.Unlock()
	if f, ok := b.pulls.running[p.ref]; ok {
		f.waiters[progress] = struct{}{}
		return f, progress
	}
	fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.opts.PullTimeout)
	f := &fetch{done: make(chan struct{}), cancel: cancel, waiters: map[chan backend.PullProgress]struct{}{progress: {}}}
	if b.pulls.running == nil {
		b.pulls.running = map[string]*fetch{}
	}
	b.pulls.running[p.ref] = f
	name, ref := p.imageName(), p.ref
	b.calls.Add(1)
	go func() { // ended by cancel, when the last waiter leaves, or by its timeout
		defer b.calls.Done()
		err := b.fetchImage(fctx, name, ref, func(pr backend.PullProgress) { b.pulls.publish(f, pr) })
		cancel()
		b.pulls.mu.Lock()
		if b.pulls.running[ref] == f {
			delete(b.pulls.running, ref)
		}
		b.pulls.mu.Unlock()
		f.err = err
		close(f.done)
	}()
	return f, progress
}

// leaveFetch must be called once per joinFetch. Nobody joins a fetch that its last waiter gave up.
func (b *Backend) leaveFetch(f *fetch, progress chan backend.PullProgress) {
	b.pulls.mu.Lock()
	defer b.pulls.mu.Unlock()
	delete(f.waiters, progress)
	if len(f.waiters) > 0 {
		return
	}
	f.cancel()
	for ref, r := range b.pulls.running {
		if r == f {
			delete(b.pulls.running, ref)
		}
	}
}

func (ps *pulls) publish(f *fetch, pr backend.PullProgress) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for w := range f.waiters {
		select {
		case w <- pr:
		default: // the waiter is behind; the next report says as much
		}
	}
}

// pullMessage is one JSON object of the engine's answer to a pull.
type pullMessage struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Progress struct {
		Current int64 `json:"current"`
		Total   int64 `json:"total"`
	} `json:"progressDetail"`
	Error string `json:"error"`
}

// fetchImage does one pull. The engine's refusals have no types in its answer, so all of them are ErrImage.
func (b *Backend) fetchImage(ctx context.Context, name, ref string, report func(backend.PullProgress)) error {
	what := "pull " + name
	auth, err := registryAuth(ctx, b.opts.ConfigDir, ref)
	if err != nil {
		b.log.Warn("docker: registry credentials", "image", name, "error", err)
		return &engineError{what: what, kind: backend.ErrImage, detail: "the registry's credentials cannot be read"}
	}
	cctx, cancel := b.bound(ctx, b.opts.PullTimeout)
	defer cancel()
	body, err := b.api.ImagePull(cctx, ref, imagetypes.PullOptions{RegistryAuth: auth, Platform: "linux/" + b.engine.arch})
	if err != nil {
		return b.pullError(ctx, what, err)
	}
	defer body.Close() //nolint:errcheck // only read from
	dec := json.NewDecoder(body)
	for {
		var m pullMessage
		err := dec.Decode(&m)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return b.pullError(ctx, what, err)
		case m.Error != "":
			b.log.Debug("docker: pull failed", "image", name, "error", m.Error)
			return &engineError{what: what, kind: backend.ErrImage, detail: scrub(m.Error)}
		}
		report(backend.PullProgress{Image: name, Layer: m.ID, Status: m.Status, Current: m.Progress.Current, Total: m.Progress.Total})
	}
}

// pullError keeps what says that the engine or the caller is gone; everything else is about the image.
func (b *Backend) pullError(ctx context.Context, what string, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &engineError{what: what, kind: backend.ErrImage, detail: fmt.Sprintf("not done within %v", b.opts.PullTimeout)}
	}
	err = b.fail(ctx, what, err)
	var e *engineError
	if errors.As(err, &e) && !errors.Is(e.kind, backend.ErrUnavailable) {
		return &engineError{what: what, kind: backend.ErrImage, detail: e.detail}
	}
	return err
}
