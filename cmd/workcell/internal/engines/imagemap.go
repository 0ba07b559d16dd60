package engines

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
)

// ImageMap maps images to replacement images, for example on a mirror. Keys have the form of backend.NormalizeImage, so
// all spellings of a reference match.
type ImageMap map[string]string

// ParseImageMap parses FROM=TO pairs. Later pairs override earlier pairs.
func ParseImageMap(pairs []string) (ImageMap, error) {
	m := ImageMap{}
	for _, pair := range pairs {
		from, to, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || from == "" || to == "" {
			return nil, hint.New(hint.Usage, fmt.Errorf("invalid image mapping %q: must be FROM=TO", pair),
				"for example --map-image python:3.11-slim=registry.example.com/python:3.11")
		}
		key, err := backend.NormalizeImage(from)
		if err != nil {
			return nil, hint.New(hint.Usage, err, "use an image reference before =, for example python:3.11-slim")
		}
		if _, err := backend.NormalizeImage(to); err != nil {
			return nil, hint.New(hint.Usage, err, "use an image reference after =, for example registry.example.com/python:3.11")
		}
		m[key] = to
	}
	return m, nil
}

// image returns the image to use for a reference.
func (m ImageMap) image(ref string) string {
	if key, err := backend.NormalizeImage(ref); err == nil {
		return cmp.Or(m[key], ref)
	}
	return ref
}

// mappedBackend creates sandboxes from the mapped images. All callers, including the image policy, see only the image
// names specified by the user.
type mappedBackend struct {
	backend.SandboxBackend
	images ImageMap
}

// MapImages returns a driver for sandboxes from the mapped images.
func MapImages(b backend.SandboxBackend, m ImageMap) backend.SandboxBackend {
	if len(m) == 0 {
		return b
	}
	return &mappedBackend{b, m}
}

// Create creates a sandbox from the mapped image.
func (b *mappedBackend) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	spec.Image = b.images.image(spec.Image)
	return b.SandboxBackend.Create(ctx, spec)
}

// ImageID returns the id of the mapped image.
func (b *mappedBackend) ImageID(ctx context.Context, ref string) (string, error) {
	return b.SandboxBackend.ImageID(ctx, b.images.image(ref))
}
