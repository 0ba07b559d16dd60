package promises

import (
	"context"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	imagetypes "github.com/docker/docker/api/types/image"

	"github.com/workcell-dev/workcell/session"
)

// foreign creates, and if wanted starts, a container that is not Workcell's.
func foreign(t testing.TB, config *container.Config, start bool) (id, name string) {
	t.Helper()
	if config.Image == "" {
		config.Image = debianImage
	}
	if config.Cmd == nil {
		config.Cmd = []string{"sleep", "600"}
	}
	name = "other-" + w.instance + "-" + session.NewID()
	res, err := w.api.ContainerCreate(t.Context(), config, &container.HostConfig{NetworkMode: "none"}, nil, nil, name)
	must(t, err)
	t.Cleanup(func() {
		must(t, w.api.ContainerRemove(context.Background(), res.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}))
	})
	if start {
		must(t, w.api.ContainerStart(t.Context(), res.ID, container.StartOptions{}))
	}
	return res.ID, name
}

// running tells whether a container is there and runs.
func running(t testing.TB, id string) bool {
	t.Helper()
	res, err := w.api.ContainerInspect(t.Context(), id)
	return err == nil && res.State.Running
}

// derivedImage makes an image from the plain one with changes in the manner of a Dockerfile, and gives its reference.
func derivedImage(t testing.TB, changes ...string) string {
	t.Helper()
	name := "other-" + w.instance + "-" + session.NewID()
	res, err := w.api.ContainerCreate(t.Context(), &container.Config{Image: debianImage, Cmd: []string{"true"}}, nil, nil, nil, name)
	must(t, err)
	ref := commit(t, res.ID, changes...)
	must(t, w.api.ContainerRemove(t.Context(), res.ID, container.RemoveOptions{Force: true}))
	return ref
}

// commit makes an image of a container, for as long as the test runs.
func commit(t testing.TB, id string, changes ...string) string {
	t.Helper()
	ref := "workcell-promises/" + strings.ToLower(session.NewID()) + ":1"
	_, err := w.api.ContainerCommit(t.Context(), id, container.CommitOptions{Reference: ref, Changes: changes})
	must(t, err)
	t.Cleanup(func() {
		_, err := w.api.ImageRemove(context.Background(), ref, imagetypes.RemoveOptions{Force: true, PruneChildren: true})
		must(t, err)
	})
	return ref
}
