package containerd

import (
	"context"
	"io"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
)

// ImportImage takes the images of an archive, as "docker save" writes it or of an OCI layout, into the driver's
// namespace, and gives their references. Images whose reference is there already are replaced.
func (b *Backend) ImportImage(ctx context.Context, r io.Reader) ([]string, error) {
	ctx, done, err := b.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	cctx, cancel := b.bound(ctx, b.opts.PullTimeout)
	defer cancel()
	found, err := b.api.Import(cctx, r)
	if err != nil {
		return nil, b.fail(ctx, "import image", err)
	}
	var refs []string
	for _, img := range found {
		if err := b.unpackImported(cctx, img); err != nil {
			return nil, b.fail(ctx, "unpack image", err)
		}
		refs = append(refs, familiar(img.Name))
	}
	return refs, nil
}

// unpackImported unpacks now what the first sandbox would have to wait for.
func (b *Backend) unpackImported(ctx context.Context, img images.Image) error {
	handle := ctrd.NewImage(b.api, img)
	if ok, err := handle.IsUnpacked(ctx, b.engine.snapshotter); ok || err != nil {
		return err
	}
	return handle.Unpack(ctx, b.engine.snapshotter)
}
