package docker_test

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
)

// TestRemovedWhileMade verifies that Create reports the removal if another program removes the sandbox during the
// creation, and that no objects remain.
func TestRemovedWhileMade(t *testing.T) {
	t.Parallel()
	for name, moment := range map[string]struct{ method, suffix string }{
		"before its start": {http.MethodPost, "/start"}, "behind its start": {http.MethodGet, "/json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			b := newBackend(t, func(o *docker.Options) { o.Host = p.host })
			api := engineAPI(t)
			spec := newSpec()
			var removed atomic.Bool
			p.on(func(r *http.Request) bool {
				is := r.Method == moment.method && strings.HasSuffix(r.URL.Path, moment.suffix)
				if !is || removed.Load() || !strings.Contains(r.URL.Path, "/containers/") {
					return true
				}
				id := path.Base(path.Dir(r.URL.Path))
				res, err := api.ContainerInspect(context.Background(), id)
				begun := r.Method == http.MethodPost || err == nil && res.State.Running
				if err == nil && begun && strings.Contains(res.Name, spec.ID) && removed.CompareAndSwap(false, true) {
					if err := api.ContainerRemove(context.Background(), id, container.RemoveOptions{Force: true}); err != nil {
						t.Error(err)
					}
				}
				return true
			})
			_, err := b.Create(t.Context(), spec)
			if !errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "was removed while it was being created") {
				t.Errorf("Create: %v, want ErrLost", err)
			}
			must(t, b.Close())
		})
	}
}
