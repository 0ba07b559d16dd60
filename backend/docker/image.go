package docker

import (
	"context"
	"fmt"
	"slices"

	imagetypes "github.com/docker/docker/api/types/image"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// image is the information about an image for Create.
type image struct {
	id      string
	env     []string
	volumes []string // paths to mount over, clean and sorted
}

// inspectImage returns the plan's image. It rejects images for another platform, and images with too many variables or
// unsafe volumes.
func (b *driver) inspectImage(ctx context.Context, p *plan) (*image, error) {
	res, err := b.inspectRef(ctx, p.Ref)
	if err != nil {
		return nil, err
	}
	// An image's configuration may omit the architecture. The engine then runs the image.
	if res.Os != "linux" || (res.Architecture != "" && res.Architecture != p.engine.arch) {
		return nil, fmt.Errorf("docker: image %s is for %s/%s, this engine runs linux/%s: %w",
			p.Image, res.Os, res.Architecture, p.engine.arch, backend.ErrUnsupported)
	}
	img := &image{id: res.ID}
	if res.Config == nil { // the image sets no variables and no volumes
		return img, nil
	}
	img.env = slices.Clone(res.Config.Env)
	img.volumes, err = kit.JudgeImage(res.Config.Env, res.Config.Volumes)
	if err != nil {
		return nil, fmt.Errorf("docker: image %s: %v: %w", p.Image, err, backend.ErrInvalid)
	}
	return img, nil
}

// ImageID returns the ID of an image.
func (b *driver) ImageID(ctx context.Context, ref string) (string, error) {
	res, err := b.inspectRef(ctx, ref)
	return res.ID, err
}

// inspectRef returns the engine's description of an image, or ErrNotFound.
func (b *driver) inspectRef(ctx context.Context, ref string) (imagetypes.InspectResponse, error) {
	return kit.Call(ctx, b.calls, "inspect image", kit.WithoutOptions(b.api.ImageInspect, ref))
}
