package docker_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	api := engineAPI(t)
	backendtest.Run(t, backendtest.Harness{
		Name:   "docker",
		New:    func(t testing.TB) backend.SandboxBackend { return newBackend(t, nil) },
		Debian: debianImage, Python: pythonImage,
		Mounts:         []string{"/etc/resolv.conf", "/etc/hostname", "/etc/hosts"},
		LooseWorkspace: true,
		Leftovers:      leftovers,
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
			res, err := api.ContainerCreate(t.Context(), &container.Config{Image: debianImage, Cmd: []string{"sleep", "100"}, Labels: labels},
				&container.HostConfig{NetworkMode: "none"}, nil, nil, name)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := api.ContainerRemove(context.Background(), res.ID, container.RemoveOptions{Force: true}); err != nil {
					t.Error(err)
				}
			})
			return []string{res.ID, res.ID[:12], name, "/" + name}
		},
	})
}
