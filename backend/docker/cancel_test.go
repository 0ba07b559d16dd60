package docker_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
)

// TestCreateCancelled cancels at every step, before and after the engine did it. Nothing may be left.
func TestCreateCancelled(t *testing.T) {
	t.Parallel()
	steps := map[string]func(*http.Request) bool{
		"image":   isRequest(http.MethodGet, "/images/", "/json"),
		"volume":  isRequest(http.MethodGet, "/volumes/", "-workspace"),
		"create":  isCreate(true),
		"init":    isCreate(false),
		"start":   isRequest(http.MethodPost, "/containers/", "/start"),
		"inspect": isRequest(http.MethodGet, "/containers/", "/json"),
	}
	for name, matches := range steps {
		for _, late := range []bool{false, true} {
			when := "before"
			if late {
				when = "after"
			}
			t.Run(name+"/"+when, func(t *testing.T) {
				t.Parallel()
				cancelAt(t, matches, late)
			})
		}
	}
}

func cancelAt(t *testing.T, matches func(*http.Request) bool, late bool) {
	p := newProxy(t)
	b := newBackend(t, func(o *docker.Options) { o.Host = p.host })
	spec := newSpec()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hit := make(chan struct{}, 64)
	p.on(func(r *http.Request) bool {
		if !matches(r) {
			return true
		}
		select {
		case hit <- struct{}{}:
		default:
		}
		if late { // the engine has it, and answers when nobody listens any more
			time.AfterFunc(2*time.Millisecond, cancel)
			return true
		}
		cancel()
		return true
	})
	info, err := b.Create(ctx, spec)
	if len(hit) == 0 {
		t.Fatalf("the step was never reached: %v", err)
	}
	switch {
	case err == nil: // done before the cancellation came through
		remove(t, b, info.ID)
	case !errors.Is(err, context.Canceled):
		t.Errorf("Create: %v, want context.Canceled", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, spec.ID)
}

// nothingLeft looks for anything that belongs to a session, by label and by name.
func nothingLeft(t *testing.T, id string) {
	t.Helper()
	api := engineAPI(t)
	ctx := context.Background()
	cs, err := api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cs {
		if c.Labels[backend.LabelID] == id || strings.Contains(strings.Join(c.Names, " "), id) {
			t.Errorf("container %v is left, %s", c.Names, c.State)
		}
	}
	vs, err := api.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs()})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vs.Volumes {
		if v.Labels[backend.LabelID] == id || strings.Contains(v.Name, id) {
			t.Errorf("volume %s is left", v.Name)
		}
	}
}

func isRequest(method, part, suffix string) func(*http.Request) bool {
	return func(r *http.Request) bool {
		return r.Method == method && strings.Contains(r.URL.Path, part) && strings.HasSuffix(r.URL.Path, suffix)
	}
}

// isCreate matches the creation of a sandbox's container, which has a name, or of one that prepares its workspace.
func isCreate(named bool) func(*http.Request) bool {
	return func(r *http.Request) bool {
		return strings.HasSuffix(r.URL.Path, "/containers/create") && (r.URL.Query().Get("name") != "") == named
	}
}
