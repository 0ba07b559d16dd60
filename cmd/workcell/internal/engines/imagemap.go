package engines

import (
	"cmp"
	"context"

	"github.com/workcell-dev/workcell/backend"
)

// mappedBackend creates sandboxes from the mapped images. All callers, including the image policy, see only the image
// names specified by the user.
type mappedBackend struct {
	backend.SandboxBackend
	images map[string]string
}

// MapImages returns a driver for sandboxes from replacement images, for example on a mirror. The keys of images have
// the form of backend.NormalizeImage, so all spellings of a reference match.
func MapImages(b backend.SandboxBackend, images map[string]string) backend.SandboxBackend {
	if len(images) == 0 {
		return b
	}
	return &mappedBackend{b, images}
}

// mappedImage returns the image to use for a reference.
func mappedImage(images map[string]string, ref string) string {
	if key, err := backend.NormalizeImage(ref); err == nil {
		return cmp.Or(images[key], ref)
	}
	return ref
}

// Create creates a sandbox from the mapped image.
func (b *mappedBackend) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	spec.Image = mappedImage(b.images, spec.Image)
	return b.SandboxBackend.Create(ctx, spec)
}

// ImageID returns the id of the mapped image.
func (b *mappedBackend) ImageID(ctx context.Context, ref string) (string, error) {
	return b.SandboxBackend.ImageID(ctx, mappedImage(b.images, ref))
}
