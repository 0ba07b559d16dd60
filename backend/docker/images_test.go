package docker_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/image"
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
)

// imageStore gives the conformance suite access to the engine's images.
func imageStore(t testing.TB) *backendtest.Images {
	api := engineAPI(t)
	return &backendtest.Images{
		New: func(t testing.TB, o backendtest.ImageOptions) backend.SandboxBackend {
			return newBackend(t, func(d *docker.Options) { d.ConfigDir, d.Images, d.PullTimeout = o.ConfigDir, o.Policy, o.PullTimeout })
		},
		Save: func(ctx context.Context, ref string, w io.Writer) error {
			r, err := api.ImageSave(ctx, []string{ref})
			if err != nil {
				return err
			}
			defer r.Close() //nolint:errcheck // only used for reading
			_, err = io.Copy(w, r)
			return err
		},
		Load: func(ctx context.Context, archive io.Reader) error {
			res, err := api.ImageLoad(ctx, archive)
			if err != nil {
				return err
			}
			defer res.Body.Close() //nolint:errcheck // only used for reading
			_, err = io.Copy(io.Discard, res.Body)
			return err
		},
		Remove: func(ctx context.Context, repo string) error { return removeImages(ctx, api, repo) },
	}
}

// removeImages deletes every tag and digest of a repository from the engine.
func removeImages(ctx context.Context, api *dockerclient.Client, repo string) error {
	repo = strings.TrimPrefix(repo, "docker.io/")
	list, err := api.ImageList(ctx, image.ListOptions{})
	for _, i := range list {
		for _, ref := range append(i.RepoTags, i.RepoDigests...) {
			if strings.HasPrefix(ref, repo+":") || strings.HasPrefix(ref, repo+"@") {
				_, _ = api.ImageRemove(ctx, ref, image.RemoveOptions{Force: true}) // may be removed with another name
			}
		}
	}
	return err
}
