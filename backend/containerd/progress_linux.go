package containerd

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/workcell-dev/workcell/backend"
)

// progressInterval is how often the progress of a pull is looked at.
const progressInterval = 100 * time.Millisecond

// tracker follows a pull: which layers there are, and how far their download is.
type tracker struct {
	image  string
	report func(backend.PullProgress)

	mu     sync.Mutex // guards layers
	layers []*layer   // as they were found
}

type layer struct {
	ocispec.Descriptor
	key    string // of its download at containerd
	status string // as it was reported last
}

// say reports a layer.
func (t *tracker) say(l *layer, status string, done int64) {
	l.status = status
	id := l.Digest.Encoded()
	t.report(backend.PullProgress{Image: t.image, Layer: id[:min(12, len(id))], Status: status, Current: done, Total: l.Size})
}

// wrap notes every layer that the pull comes upon.
func (t *tracker) wrap(h images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		children, err := h.Handle(ctx, desc)
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, c := range children {
			known := slices.ContainsFunc(t.layers, func(l *layer) bool { return l.Digest == c.Digest })
			if images.IsLayerType(c.MediaType) && !known {
				l := &layer{Descriptor: c, key: remotes.MakeRefKey(ctx, c)}
				t.layers = append(t.layers, l)
				t.say(l, "Waiting", 0)
			}
		}
		return children, err
	})
}

// watch reports the downloads under way until stop is called.
func (t *tracker) watch(ctx context.Context, store content.Store) (stop func()) {
	t.report(backend.PullProgress{Image: t.image, Status: "Resolving"})
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { // ends with stop
		for pause(ctx, progressInterval) {
			if active, err := store.ListStatuses(ctx); err == nil {
				t.look(active)
			}
		}
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

func (t *tracker) look(active []content.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.layers {
		i := slices.IndexFunc(active, func(s content.Status) bool { return strings.HasSuffix(s.Ref, l.key) })
		switch {
		case i >= 0:
			t.say(l, "Downloading", active[i].Offset)
		case l.status == "Downloading":
			t.say(l, "Extracting", l.Size)
		}
	}
}

// finish reports that all is there.
func (t *tracker) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.layers {
		t.say(l, "Pull complete", l.Size)
	}
	t.report(backend.PullProgress{Image: t.image, Status: "Downloaded"})
}
