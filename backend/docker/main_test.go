package docker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

const (
	pythonImage = "workcell/python:3.11"
	debianImage = "workcell/debian:12"
)

// instance labels all objects of this test run.
var instance = "test-" + strings.ToLower(rand.Text())

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if left, err := leftovers(context.Background(), instance); len(left) != 0 || err != nil {
			fmt.Fprintln(os.Stderr, "left behind:", left, err)
			code = 1
		}
	}
	if code == 0 {
		if err := leaktest.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// leftovers lists the objects of an instance on the engine.
func leftovers(ctx context.Context, instance string) ([]string, error) {
	api, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	defer api.Close() //nolint:errcheck // only used for queries
	ours := filters.NewArgs(filters.Arg("label", backend.LabelInstance+"="+instance))
	var left []string
	cs, err := api.ContainerList(ctx, container.ListOptions{All: true, Filters: ours})
	if err != nil {
		return nil, err
	}
	for _, c := range cs {
		left = append(left, fmt.Sprintf("container %v (%s)", c.Names, c.State))
	}
	vs, err := api.VolumeList(ctx, volume.ListOptions{Filters: ours})
	if err != nil {
		return nil, err
	}
	for _, v := range vs.Volumes {
		left = append(left, "volume "+v.Name)
	}
	return left, nil
}

func newBackend(t testing.TB, adjust func(*docker.Options)) *docker.Backend {
	t.Helper()
	o := &docker.Options{Host: os.Getenv("DOCKER_HOST")}
	if adjust != nil {
		adjust(o)
	}
	b, err := docker.New(t.Context(), o)
	return backendtest.Closing(t, b, err)
}

func engineAPI(t testing.TB) *dockerclient.Client {
	t.Helper()
	api, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	must(t, err)
	t.Cleanup(func() { _ = api.Close() })
	return api
}

func newSpec() backend.Spec { return backendtest.Spec(instance, debianImage) }

var must = checktest.Must

// second returns the error of a call with two results.
func second[T any](_ T, err error) error { return err }

// dropInits deletes the helper images for unusual users at the end of the test, if they exist.
func dropInits(t testing.TB, users ...string) {
	t.Helper()
	api := engineAPI(t)
	t.Cleanup(func() {
		for _, u := range users {
			_, err := api.ImageRemove(context.Background(), "workcell/init:"+u, image.RemoveOptions{Force: true})
			if err != nil && !cerrdefs.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
}

// removeContainer removes a container other than a sandbox.
func removeContainer(t testing.TB, api *dockerclient.Client, id string) {
	t.Helper()
	must(t, api.ContainerRemove(context.Background(), id, container.RemoveOptions{Force: true}))
}
