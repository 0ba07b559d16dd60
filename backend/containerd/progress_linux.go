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
	layers map[string]*layer
	order  []string // keys of layers, as they were found
}

type layer struct {
	id       string // short, for people
	key      string // of its download at containerd
	size     int64
	started  bool
	finished bool
}

func newTracker(image string, report func(backend.PullProgress)) *tracker {
	return &tracker{image: image, report: report, layers: map[string]*layer{}}
}

// wrap notes every layer that the pull comes upon.
func (t *tracker) wrap(h images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		children, err := h.Handle(ctx, desc)
		for _, c := range children {
			if images.IsLayerType(c.MediaType) {
				t.add(ctx, c)
			}
		}
		return children, err
	})
}

func (t *tracker) add(ctx context.Context, desc ocispec.Descriptor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := desc.Digest.String()
	if t.layers[id] != nil {
		return
	}
	short := desc.Digest.Encoded()
	l := &layer{id: short[:min(12, len(short))], key: remotes.MakeRefKey(ctx, desc), size: desc.Size}
	t.layers[id], t.order = l, append(t.order, id)
	t.report(backend.PullProgress{Image: t.image, Layer: l.id, Status: "Waiting", Total: l.size})
}

// watch reports the downloads under way until stop is called.
func (t *tracker) watch(ctx context.Context, store content.Store) (stop func()) {
	t.report(backend.PullProgress{Image: t.image, Status: "Resolving"})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if active, err := store.ListStatuses(ctx); err == nil {
					t.look(active)
				}
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (t *tracker) look(active []content.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range t.order {
		l := t.layers[id]
		i := slices.IndexFunc(active, func(s content.Status) bool { return strings.HasSuffix(s.Ref, l.key) })
		switch {
		case i >= 0:
			l.started = true
			t.report(backend.PullProgress{Image: t.image, Layer: l.id, Status: "Downloading", Current: active[i].Offset, Total: l.size})
		case l.started && !l.finished:
			l.finished = true
			t.report(backend.PullProgress{Image: t.image, Layer: l.id, Status: "Extracting", Current: l.size, Total: l.size})
		}
	}
}

// finish reports that all is there.
func (t *tracker) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range t.order {
		l := t.layers[id]
		t.report(backend.PullProgress{Image: t.image, Layer: l.id, Status: "Pull complete", Current: l.size, Total: l.size})
	}
	t.report(backend.PullProgress{Image: t.image, Status: "Downloaded"})
}
