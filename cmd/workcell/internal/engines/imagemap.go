package engines

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
)

// ImageMap is which image to use in place of another, for machines behind a mirror. Keys are in the form of
// backend.NormalizeImage, so every spelling of a reference finds its entry.
type ImageMap map[string]string

// ParseImageMap reads FROM=TO pairs. Later ones win.
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

// mappedBackend creates sandboxes from the mapped images. Everything above it, the image policy included, knows an
// image by the name the user wrote.
type mappedBackend struct {
	backend.SandboxBackend
	images ImageMap
}

// MapImages returns a driver that creates sandboxes from the mapped images.
func MapImages(b backend.SandboxBackend, m ImageMap) backend.SandboxBackend {
	if len(m) == 0 {
		return b
	}
	return &mappedBackend{b, m}
}

// Create creates from the mapped image.
func (b *mappedBackend) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	spec.Image = b.images.image(spec.Image)
	return b.SandboxBackend.Create(ctx, spec)
}

// ImageID asks for the mapped image.
func (b *mappedBackend) ImageID(ctx context.Context, ref string) (string, error) {
	return b.SandboxBackend.ImageID(ctx, b.images.image(ref))
}
