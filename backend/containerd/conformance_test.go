//go:build linux

package containerd_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	backendtest.Run(t, harness(t))
}

func harness(t testing.TB) backendtest.Harness {
	api := engineAPI(t)
	return backendtest.Harness{
		Name: "containerd",
		New:  func(t testing.TB) backend.SandboxBackend { return newBackend(t, nil) },
		NewAllowing: func(t testing.TB, nets []netip.Prefix) backend.SandboxBackend {
			return newBackend(t, func(o *containerd.Options) { o.AllowNets = nets })
		},
		Debian: debianImage, Python: pythonImage, Images: imageStore(t),
		Leftovers: leftovers,
		Vanish:    func(ctx context.Context, id string) error { return vanish(ctx, api, id) },
		Describe: func(ctx context.Context, id string) (string, error) {
			if container := containerd.ContainerOf(id); container != "" { // the ID of a sandbox
				id = container
			}
			c, err := api.ContainerService().Get(ctx, id)
			if err != nil {
				return "", err
			}
			text, err := json.Marshal(c)
			return string(text), err
		},
		Foreign: func(t testing.TB, labels map[string]string) []string {
			id := "workcelltest-" + rand.Text()
			foreign(t, api, id, labels)
			return []string{id}
		},
	}
}
