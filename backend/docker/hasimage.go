package docker

import (
	"context"
	"errors"

	imagetypes "github.com/docker/docker/api/types/image"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

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
