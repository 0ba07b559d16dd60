package docker_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	dropInits(t, "1234-1234", "4242-100", "2147483647-2147483647") // users in the suite
	backendtest.Run(t, harness(t))
}

func harness(t testing.TB) backendtest.Harness {
	api := engineAPI(t)
	return backendtest.Harness{
		Name: "docker",
		New:  func(t testing.TB) backend.SandboxBackend { return newBackend(t, nil) },
		NewAllowing: func(t testing.TB, nets []netip.Prefix) backend.SandboxBackend {
			return newBackend(t, func(o *docker.Options) { o.AllowNets = nets })
		},
		Debian: debianImage, Python: pythonImage, Images: imageStore(t),
		Leftovers: leftovers,
		Vanish: func(ctx context.Context, id string) error {
			return api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true})
		},
		Describe: func(ctx context.Context, id string) (string, error) {
			res, err := api.ContainerInspect(ctx, id)
			if err != nil {
				return "", err
			}
			text, err := json.Marshal(res)
			return string(text), err
		},
		Foreign: func(t testing.TB, labels map[string]string) []string {
			name := "workcelltest-" + strings.ToLower(rand.Text())
			c := &container.Config{Image: debianImage, Cmd: []string{"sleep", "100"}, Labels: labels}
			res, err := api.ContainerCreate(t.Context(), c, &container.HostConfig{NetworkMode: "none"}, nil, nil, name)
			must(t, err)
			t.Cleanup(func() { removeContainer(t, api, res.ID) })
			return []string{res.ID, res.ID[:12], name, "/" + name}
		},
	}
}
