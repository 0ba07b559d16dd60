package containerd

import (
	"context"
	"errors"
	"net/http"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	cerrdefs "github.com/containerd/errdefs"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/registryauth"
)

// fetchImage pulls an image. This process connects to the registry and passes the layers to containerd.
func (b *driver) fetchImage(ctx context.Context, p *kit.Plan, report func(backend.PullProgress)) error {
	what := "pull " + p.Image
	cctx, cancel := b.calls.Bound(ctx, b.opts.PullTimeout)
	defer cancel()
	report(backend.PullProgress{Image: p.Image, Status: "Downloading"})
	resolver, closeIdle := b.resolver(cctx)
	defer closeIdle()
	err := b.leased(cctx, b.opts.PullTimeout, func(ctx context.Context) error {
		_, err := b.api.Pull(ctx, p.Ref, ctrd.WithPullUnpack, ctrd.WithPullSnapshotter(b.engine.snapshotter),
			ctrd.WithResolver(resolver), ctrd.WithPlatform("linux/"+b.engine.arch))
		return err
	})
	silent := errors.Is(context.Cause(cctx), kit.ErrSilent) || cerrdefs.IsUnavailable(err)
	failed := b.calls.Fail(ctx, what, err) // also logs the full error
	// Errors of containerd and of the caller keep their kind. All other errors become ErrImage.
	switch {
	case err == nil:
		report(backend.PullProgress{Image: p.Image, Status: "Downloaded"})
		return nil
	case ctx.Err() != nil:
		return failed
	case silent:
		return b.calls.Error(what, backend.ErrUnavailable, "")
	}
	return b.calls.Error(what, backend.ErrImage, kit.Scrub(err.Error()))
}

// resolver returns a resolver for registries with Docker's credentials.
func (b *driver) resolver(ctx context.Context) (_ remotes.Resolver, closeIdle func()) {
	client := &http.Client{Transport: docker.DefaultHTTPTransport(nil)}
	credentials := func(host string) (string, string, error) {
		a := registryauth.Lookup(ctx, b.opts.Logger, b.opts.ConfigDir, host)
		if a.IdentityToken != "" {
			return "", a.IdentityToken, nil // without a user
		}
		return a.Username, a.Password, nil
	}
	return docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithClient(client),
		docker.WithPlainHTTP(docker.MatchLocalhost),
		docker.WithAuthorizer(docker.NewDockerAuthorizer(docker.WithAuthClient(client), docker.WithAuthCreds(credentials))),
	)}), client.CloseIdleConnections
}
