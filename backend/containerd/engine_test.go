package containerd_test

import (
	"context"
	"errors"
	"testing"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/plugins"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// vanish removes a sandbox as an operator would, with containerd's own means alone.
func vanish(ctx context.Context, api *ctrd.Client, id string) error {
	c, err := api.LoadContainer(ctx, id)
	if err != nil {
		return err
	}
	task, err := c.Task(ctx, nil)
	if err == nil {
		_, err = task.Delete(ctx, ctrd.WithProcessKill)
	}
	if err != nil && !cerrdefs.IsNotFound(err) {
		return err
	}
	return c.Delete(ctx, ctrd.WithSnapshotCleanup)
}

// foreign makes a container that is not Workcell's, until the test's end.
func foreign(t testing.TB, api *ctrd.Client, id string, labels map[string]string) {
	t.Helper()
	spec, err := typeurl.MarshalAny(&specs.Spec{Version: "1.0.2"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.ContainerService().Create(t.Context(), containers.Container{
		ID: id, Labels: labels, Spec: spec, Runtime: containers.RuntimeInfo{Name: plugins.RuntimeRuncV2},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := api.ContainerService().Delete(context.Background(), id)
		if err != nil && !errors.Is(err, cerrdefs.ErrNotFound) {
			t.Errorf("remove a foreign container: %v", err)
		}
	})
}
