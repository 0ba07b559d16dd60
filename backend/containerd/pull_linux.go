package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	cerrdefs "github.com/containerd/errdefs"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/registryauth"
)

// fetchImage does one pull. This process speaks with the registry itself and hands the layers to containerd.
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
	if err != nil {
		if errors.Is(context.Cause(cctx), kit.ErrSilent) {
			err = kit.ErrSilent
		}
		return b.pullError(ctx, what, err)
	}
	report(backend.PullProgress{Image: p.Image, Status: "Downloaded"})
	return nil
}

// resolver finds registries and shows them Docker's credentials.
func (b *driver) resolver(ctx context.Context) (_ remotes.Resolver, closeIdle func()) {
	client := &http.Client{Transport: docker.DefaultHTTPTransport(nil)}
	credentials := func(host string) (string, string, error) {
		user, secret, err := registryAuth(ctx, b.opts.ConfigDir, host)
		if err != nil {
			b.log.Warn("containerd: registry credentials", "registry", host, "error", err)
			return "", "", errors.New("cannot read the registry credentials")
		}
		return user, secret, nil
	}
	return docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithClient(client),
		docker.WithPlainHTTP(func(host string) (bool, error) { return isLoopback(host), nil }),
		docker.WithAuthorizer(docker.NewDockerAuthorizer(docker.WithAuthClient(client), docker.WithAuthCreds(credentials))),
	)}), client.CloseIdleConnections
}

// isLoopback reports whether a registry is on this machine's own loopback addresses; its name need not be looked up.
func isLoopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// pullError keeps the errors of a containerd or a caller that is gone; all others are about the image.
func (b *driver) pullError(ctx context.Context, what string, err error) error {
	if ctx.Err() == nil && (errors.Is(err, kit.ErrSilent) || cerrdefs.IsUnavailable(err)) {
		return b.calls.Error(what, backend.ErrUnavailable, "")
	}
	detail := kit.Scrub(err.Error())
	if err := b.calls.Fail(ctx, what, err); ctx.Err() != nil {
		return err
	}
	return b.calls.Error(what, backend.ErrImage, detail)
}

// registryAuth returns the credentials for a registry's host in the form that containerd's client takes: user and
// password, or no user and a token.
func registryAuth(ctx context.Context, dir, host string) (user, secret string, err error) {
	a, err := registryauth.Lookup(ctx, dir, host)
	switch {
	case err != nil && errors.Is(err, ctx.Err()):
		return "", "", err
	case err != nil:
		return "", "", fmt.Errorf("registry credentials: %w", err)
	case a.IdentityToken != "":
		return "", a.IdentityToken, nil
	}
	return a.Username, a.Password, nil
}
