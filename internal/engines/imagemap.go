package engines

import (
	"context"
	"fmt"
	"io"
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
			return nil, hint.New(hint.Usage, fmt.Errorf("image mapping %q is not of the form FROM=TO", pair),
				"for example --map-image python:3.11-slim=registry.example.com/python:3.11")
		}
		key, err := backend.NormalizeImage(from)
		if err != nil {
			return nil, hint.New(hint.Usage, err, "the part before = is an image reference such as python:3.11-slim")
		}
		if _, err := backend.NormalizeImage(to); err != nil {
			return nil, hint.New(hint.Usage, err, "the part after = is an image reference such as registry.example.com/python:3.11")
		}
		m[key] = to
	}
	return m, nil
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
	if key, err := backend.NormalizeImage(spec.Image); err == nil {
		if to, ok := b.images[key]; ok {
			spec.Image = to
		}
	}
	return b.SandboxBackend.Create(ctx, spec)
}

// Unwrap returns the driver.
func (b *mappedBackend) Unwrap() backend.SandboxBackend { return b.SandboxBackend }

// The optional interfaces of a driver stay reachable through the wrapper.

// Name is the driver's.
func (b *mappedBackend) Name() string {
	if n, ok := b.SandboxBackend.(interface{ Name() string }); ok {
		return n.Name()
	}
	return "engine"
}

// Connect is the driver's, ErrUnsupported when it has none.
func (b *mappedBackend) Connect(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	if c, ok := b.SandboxBackend.(backend.Connector); ok {
		return c.Connect(ctx, id)
	}
	return nil, backend.ErrUnsupported
}

// Ping is the driver's, ErrUnsupported when it has none.
func (b *mappedBackend) Ping(ctx context.Context) (backend.EngineInfo, error) {
	if p, ok := b.SandboxBackend.(backend.Pinger); ok {
		return p.Ping(ctx)
	}
	return backend.EngineInfo{}, backend.ErrUnsupported
}

// OOMKills is the driver's, ErrUnsupported when it has none.
func (b *mappedBackend) OOMKills(ctx context.Context, id string) (int64, error) {
	if o, ok := b.SandboxBackend.(backend.OOMReporter); ok {
		return o.OOMKills(ctx, id)
	}
	return 0, backend.ErrUnsupported
}

// HasWorkspace is the driver's, ErrUnsupported when it has none.
func (b *mappedBackend) HasWorkspace(ctx context.Context, instance, sessionID string) (bool, error) {
	if w, ok := b.SandboxBackend.(backend.WorkspaceKeeper); ok {
		return w.HasWorkspace(ctx, instance, sessionID)
	}
	return false, backend.ErrUnsupported
}

// RemoveWorkspace is the driver's, ErrUnsupported when it has none.
func (b *mappedBackend) RemoveWorkspace(ctx context.Context, instance, sessionID string) error {
	if w, ok := b.SandboxBackend.(backend.WorkspaceKeeper); ok {
		return w.RemoveWorkspace(ctx, instance, sessionID)
	}
	return backend.ErrUnsupported
}

// OldGuests are the driver's, none when it keeps none.
func (b *mappedBackend) OldGuests(ctx context.Context) ([]backend.OldGuest, error) {
	if k, ok := b.SandboxBackend.(backend.GuestKeeper); ok {
		return k.OldGuests(ctx)
	}
	return nil, nil
}

// RemoveOldGuest is the driver's, ErrUnsupported when it has none.
func (b *mappedBackend) RemoveOldGuest(ctx context.Context, name string) error {
	if k, ok := b.SandboxBackend.(backend.GuestKeeper); ok {
		return k.RemoveOldGuest(ctx, name)
	}
	return backend.ErrUnsupported
}

// HasImage asks for the mapped image; ErrUnsupported when the driver cannot tell.
func (b *mappedBackend) HasImage(ctx context.Context, ref string) (bool, error) {
	c, ok := b.SandboxBackend.(backend.ImageChecker)
	if !ok {
		return false, backend.ErrUnsupported
	}
	if key, err := backend.NormalizeImage(ref); err == nil {
		if to, ok := b.images[key]; ok {
			ref = to
		}
	}
	return c.HasImage(ctx, ref)
}
