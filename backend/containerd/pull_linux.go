package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	cerrdefs "github.com/containerd/errdefs"

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
	ctx, span := b.span(ctx, telemetry.SpanContainerdPull, telemetry.Text(telemetry.KeyImage, p.imageName()))
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
	ref := p.ref
	b.calls.Add(1)
	go func() { // ended by cancel, when the last waiter leaves, or by its timeout
		defer b.calls.Done()
		err := b.fetchImage(fctx, ref, func(pr backend.PullProgress) { b.pulls.publish(f, pr) })
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

// fetchImage does one pull. This process speaks with the registry itself and hands the layers to containerd.
func (b *Backend) fetchImage(ctx context.Context, ref string, report func(backend.PullProgress)) error {
	what := "pull " + familiar(ref)
	cctx, cancel := b.bound(ctx, b.opts.PullTimeout)
	defer cancel()
	t := newTracker(familiar(ref), report)
	defer t.watch(cctx, b.api.ContentStore())()
	resolver, closeIdle := b.resolver(cctx)
	defer closeIdle()
	err := b.leased(cctx, b.opts.PullTimeout, func(ctx context.Context) error {
		_, err := b.api.Pull(ctx, ref, ctrd.WithPullUnpack, ctrd.WithPullSnapshotter(b.engine.snapshotter),
			ctrd.WithResolver(resolver), ctrd.WithPlatform("linux/"+b.engine.arch), ctrd.WithImageHandlerWrapper(t.wrap))
		return err
	})
	if err != nil {
		if errors.Is(context.Cause(cctx), errSilent) {
			err = errSilent
		}
		return b.pullError(ctx, what, err)
	}
	t.finish()
	return nil
}

// resolver finds registries and shows them Docker's credentials.
func (b *Backend) resolver(ctx context.Context) (_ remotes.Resolver, closeIdle func()) {
	client := &http.Client{Transport: docker.DefaultHTTPTransport(nil)}
	credentials := func(host string) (string, string, error) {
		user, secret, err := registryAuth(ctx, b.opts.ConfigDir, host)
		if err != nil {
			b.log.Warn("containerd: registry credentials", "registry", host, "error", err)
			return "", "", errors.New("the registry's credentials cannot be read")
		}
		return user, secret, nil
	}
	return docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithClient(client),
		docker.WithPlainHTTP(func(host string) (bool, error) { return isLoopback(host), nil }),
		docker.WithAuthorizer(docker.NewDockerAuthorizer(docker.WithAuthClient(client), docker.WithAuthCreds(credentials))),
	)}), client.CloseIdleConnections
}

// isLoopback tells whether a registry is on this machine's own loopback addresses; its name need not be looked up.
func isLoopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// pullError keeps what says that containerd or the caller is gone; everything else is about the image.
func (b *Backend) pullError(ctx context.Context, what string, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &engineError{what: what, kind: backend.ErrImage, detail: fmt.Sprintf("not done within %v", b.opts.PullTimeout)}
	}
	if ctx.Err() == nil && (errors.Is(err, errSilent) || cerrdefs.IsUnavailable(err)) {
		return &engineError{what: what, kind: backend.ErrUnavailable}
	}
	detail := scrub(err.Error())
	if err := b.fail(ctx, what, err); ctx.Err() != nil {
		return err
	}
	return &engineError{what: what, kind: backend.ErrImage, detail: detail}
}
