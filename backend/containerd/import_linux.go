package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// ImportImage takes the images of an archive, as "docker save" writes it or of an OCI layout, into the driver's
// namespace, and returns their references. Images whose reference is there already are replaced.
func (b *Backend) ImportImage(ctx context.Context, r io.Reader) ([]string, error) {
	return kit.Admit(ctx, b.d.calls, "", func(ctx context.Context) ([]string, error) { return b.d.importImage(ctx, r) })
}

func (b *driver) importImage(ctx context.Context, r io.Reader) ([]string, error) {
	cctx, cancel := b.calls.Bound(ctx, b.opts.PullTimeout)
	defer cancel()
	var refs []string
	err := b.leased(cctx, b.opts.PullTimeout, func(ctx context.Context) error {
		found, err := b.api.Import(ctx, r)
		for _, img := range found {
			err = errors.Join(err, b.unpackImported(ctx, img))
			refs = append(refs, familiar(img.Name))
		}
		return err
	})
	if err != nil {
		return nil, b.importError(ctx, err)
	}
	return refs, nil
}

// importError keeps the errors of a containerd or a caller that is gone; all others are about the archive.
func (b *driver) importError(ctx context.Context, err error) error {
	if errors.Is(err, images.ErrEmptyWalk) {
		return fmt.Errorf("containerd: no image for linux/%s in the archive: %w", b.engine.arch, backend.ErrUnsupported)
	}
	err = b.calls.Fail(ctx, "import image", err)
	var e *kit.Error
	if errors.As(err, &e) && e.Kind == nil { // the archive's own fault has no type
		err = b.calls.Error(e.What, backend.ErrInvalid, e.Detail)
	}
	return err
}

// unpackImported unpacks now what the first sandbox would have to wait for.
func (b *driver) unpackImported(ctx context.Context, img images.Image) error {
	handle := ctrd.NewImage(b.api, img)
	if ok, err := handle.IsUnpacked(ctx, b.engine.snapshotter); ok || err != nil {
		return err
	}
	return handle.Unpack(ctx, b.engine.snapshotter)
}
