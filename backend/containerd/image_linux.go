package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const maxImageConfig = 4 << 20 // bytes of JSON

// image is the information about an image for Create. It is immutable.
type image struct {
	id      string // digest of the configuration
	target  string // digest to which the reference resolves
	chain   string // chain ID of the unpacked layers; empty if the image has no layers
	env     []string
	volumes []string // paths to mount over, clean and sorted
}

// findImage describes an image unpacked for this host. If the image is missing or incomplete, findImage returns
// ErrNotFound.
func (b *driver) findImage(ctx context.Context, ref string) (*image, error) {
	found, err := b.lookUp(ctx, ref)
	if err != nil {
		return nil, err
	}
	if img, ok := b.images.Load(found.Target.Digest.String()); ok {
		return img.(*image), nil
	}
	img, err := kit.Call(ctx, b.calls, "read image", kit.With(b.readImage, found))
	if err != nil {
		return nil, err
	}
	if err := b.unpack(ctx, found, img); err != nil {
		return nil, err
	}
	b.images.Store(img.target, img)
	return img, nil
}

// readImage reads and checks an image's configuration.
func (b *driver) readImage(ctx context.Context, found images.Image) (*image, error) {
	name := familiar(found.Name)
	store := b.api.ContentStore()
	handle := ctrd.NewImage(b.api, found)
	desc, err := handle.Config(ctx)
	if cerrdefs.IsNotFound(err) {
		if other, ok := b.foreign(ctx, found); ok {
			return nil, b.calls.Error("read image", backend.ErrUnsupported, other)
		}
	}
	if err != nil {
		return nil, err
	}
	if desc.Size > maxImageConfig {
		return nil, b.calls.Error("read image", backend.ErrInvalid, name+" has a configuration of more than 4 MiB")
	}
	data, err := content.ReadBlob(ctx, store, desc)
	if err != nil {
		return nil, err
	}
	var c ocispec.Image
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, b.calls.Error("read image", backend.ErrInvalid, name+" has a malformed configuration")
	}
	if c.OS != "linux" || c.Architecture != "" && c.Architecture != b.engine.arch {
		return nil, b.calls.Error("read image", backend.ErrUnsupported, b.foreignText(found, c.OS, c.Architecture))
	}
	volumes, err := kit.JudgeImage(c.Config.Env, c.Config.Volumes)
	if err != nil {
		return nil, b.calls.Error("image "+name, backend.ErrInvalid, err.Error())
	}
	img := &image{
		id: desc.Digest.String(), target: found.Target.Digest.String(), env: slices.Clone(c.Config.Env), volumes: volumes,
	}
	if len(c.RootFS.DiffIDs) > 0 {
		img.chain = identity.ChainID(c.RootFS.DiffIDs).String()
	}
	return img, nil
}

// foreign returns a text about the platforms of an image without support for this host.
func (b *driver) foreign(ctx context.Context, found images.Image) (string, bool) {
	ps, err := images.Platforms(ctx, b.api.ContentStore(), found.Target)
	if err != nil || len(ps) == 0 {
		return "", false
	}
	return b.foreignText(found, ps[0].OS, ps[0].Architecture), true
}

func (b *driver) foreignText(found images.Image, system, arch string) string {
	return fmt.Sprintf("%s is for %.40s/%.40s, this host runs linux/%s", familiar(found.Name), system, arch, b.engine.arch)
}

// unpack unpacks the layers of an image as a snapshot, unless they are already unpacked.
func (b *driver) unpack(ctx context.Context, found images.Image, img *image) error {
	if img.chain == "" {
		return nil
	}
	cctx, cancel := b.calls.Bound(ctx, b.opts.PullTimeout)
	defer cancel()
	if _, err := b.api.SnapshotService(b.engine.snapshotter).Stat(cctx, img.chain); err == nil {
		return nil // without a lease, which a killed process would leave
	}
	err := b.leased(cctx, b.opts.PullTimeout, func(ctx context.Context) error {
		return ctrd.NewImage(b.api, found).Unpack(ctx, b.engine.snapshotter)
	})
	err = b.calls.Fail(ctx, "unpack image", err)
	if errors.Is(err, backend.ErrNotFound) { // with missing layers, the image counts as missing
		return fmt.Errorf("containerd: image %s is incomplete: %w", familiar(found.Name), backend.ErrNotFound)
	}
	return err
}

// ImageID returns the ID of an image in the driver's namespace.
func (b *driver) ImageID(ctx context.Context, ref string) (string, error) {
	found, err := b.lookUp(ctx, ref)
	if err != nil {
		return "", err
	}
	if img, ok := b.images.Load(found.Target.Digest.String()); ok {
		return img.(*image).id, nil
	}
	img, err := kit.Call(ctx, b.calls, "read image", kit.With(b.readImage, found))
	if err != nil {
		return "", err
	}
	return img.id, nil
}

func (b *driver) lookUp(ctx context.Context, ref string) (images.Image, error) {
	return kit.Call(ctx, b.calls, "look for image", kit.With(b.api.ImageService().Get, ref))
}
