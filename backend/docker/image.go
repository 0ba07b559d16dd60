package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	imagetypes "github.com/docker/docker/api/types/image"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const maxKnownImages = 1024 // checks that are remembered

// image is what Create needs to know of an image.
type image struct {
	id      string
	env     []string
	volumes []string // paths to mount over, clean and sorted
}

// ensureImage finds the image on the engine or fetches it, as the plan says, and judges its configuration.
func (b *Backend) ensureImage(ctx context.Context, p *plan) (*image, error) {
	find := func(ctx context.Context) (*image, error) { return b.inspectImage(ctx, p) }
	return kit.EnsureImage(ctx, b.calls, p.Plan, p.imageName(), find, func(ctx context.Context) error { return b.pull(ctx, p) })
}

func (b *Backend) inspectImage(ctx context.Context, p *plan) (*image, error) {
	res, err := kit.Call(ctx, b.calls, "inspect image", func(ctx context.Context) (imagetypes.InspectResponse, error) {
		return b.api.ImageInspect(ctx, p.Ref)
	})
	if err != nil {
		return nil, err
	}
	if res.Os != "linux" || (res.Architecture != "" && res.Architecture != b.engine.arch) {
		return nil, fmt.Errorf("docker: image %s is for %s/%s, this engine runs linux/%s: %w",
			p.imageName(), res.Os, res.Architecture, b.engine.arch, backend.ErrUnsupported)
	}
	img := &image{id: res.ID}
	if res.Config == nil {
		return img, nil
	}
	img.env = slices.Clone(res.Config.Env)
	img.volumes, err = kit.JudgeImage(res.Config.Env, res.Config.Volumes)
	if err != nil {
		return nil, fmt.Errorf("docker: image %s: %v: %w", p.imageName(), err, backend.ErrInvalid)
	}
	return img, nil
}

// checkMountPoints refuses an image in which a place where something is mounted is a link: the mount would land where
// the link points. It looks through the container, which must not run yet; an image that passed is not looked at again.
func (b *Backend) checkMountPoints(ctx context.Context, container string, img *image) error {
	b.mu.Lock()
	_, known := b.images[img.id]
	b.mu.Unlock()
	if known {
		return nil
	}
	seen := map[string]bool{}
	for _, target := range append([]string{guestDir, backend.Workdir, "/tmp"}, img.volumes...) {
		for at := target; at != "/" && !seen[at]; at = path.Dir(at) {
			seen[at] = true
			if err := b.checkMountPoint(ctx, container, at); err != nil {
				return err
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.images) >= maxKnownImages {
		clear(b.images)
	}
	b.images[img.id] = struct{}{}
	return nil
}

func (b *Backend) checkMountPoint(ctx context.Context, id, at string) error {
	st, err := b.statPath(ctx, id, at)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return nil // the runtime makes a plain directory
	case kit.Unexplained(err):
		// To look at a path the engine mounts everything first, and fails where a mount does not fit what is there.
		return fmt.Errorf("docker: the image's mount points cannot be mounted over: %v: %w", err, backend.ErrInvalid)
	case err != nil:
		return err
	case st.Mode&fs.ModeType != fs.ModeDir:
		return fmt.Errorf("docker: in the image, %s is not a plain directory: %w", at, backend.ErrInvalid)
	}
	return nil
}

var _ backend.ImageChecker = (*Backend)(nil)

// HasImage reports whether the engine has an image, without fetching it.
func (b *Backend) HasImage(ctx context.Context, ref string) (bool, error) {
	full, err := backend.NormalizeImage(ref)
	if err != nil {
		return false, err
	}
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	_, err = kit.Call(ctx, b.calls, "inspect image", func(ctx context.Context) (imagetypes.InspectResponse, error) {
		return b.api.ImageInspect(ctx, full)
	})
	if errors.Is(err, backend.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
