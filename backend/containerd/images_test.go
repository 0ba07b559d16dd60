//go:build linux

package containerd_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images/archive"
	cerrdefs "github.com/containerd/errdefs"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
)

func imageStore(t testing.TB) *backendtest.Images {
	api := engineAPI(t)
	return &backendtest.Images{
		New: func(t testing.TB, o backendtest.ImageOptions) backend.SandboxBackend {
			return newBackend(t, func(c *containerd.Options) {
				c.ConfigDir, c.Images, c.PullTimeout = o.ConfigDir, o.Policy, o.PullTimeout
			})
		},
		Save: func(ctx context.Context, ref string, w io.Writer) error {
			full, err := backend.NormalizeImage(ref)
			if err != nil {
				return err
			}
			return api.Export(ctx, w, archive.WithImage(api.ImageService(), full))
		},
		Load: func(ctx context.Context, r io.Reader) error {
			_, err := api.Import(ctx, r, ctrd.WithAllPlatforms(true))
			return err
		},
		Remove: func(ctx context.Context, repo string) error { return removeImages(ctx, api, repo) },
	}
}

// removeImages deletes every tag and digest of a repository from the engine.
func removeImages(ctx context.Context, api *ctrd.Client, repo string) error {
	list, err := api.ImageService().List(ctx)
	for _, i := range list {
		if strings.HasPrefix(i.Name, repo+":") || strings.HasPrefix(i.Name, repo+"@") {
			if gone := api.ImageService().Delete(ctx, i.Name); !cerrdefs.IsNotFound(gone) {
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}
