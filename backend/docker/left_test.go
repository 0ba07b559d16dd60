package docker_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
)

// nothingLeft verifies that no object of a session remains. It searches by label and by name.
func nothingLeft(t *testing.T, id string) {
	t.Helper()
	api := engineAPI(t)
	ctx := context.Background()
	cs, err := api.ContainerList(ctx, container.ListOptions{All: true})
	must(t, err)
	for _, c := range cs {
		if c.Labels[backend.LabelID] == id || strings.Contains(strings.Join(c.Names, " "), id) {
			t.Errorf("container %v is left, %s", c.Names, c.State)
		}
	}
	vs, err := api.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs()})
	must(t, err)
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
