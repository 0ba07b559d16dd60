// Package registryauth looks up credentials of registries in Docker's configuration.
package registryauth

import (
	"context"

	dockerconfig "github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
)

// hubKey is how Docker's configuration names its own registry.
const hubKey = "https://index.docker.io/v1/"

// Lookup returns the credentials for a registry's host from the configuration in dir; none for an empty dir. Credential
// helpers are asked, which are programs that may hang: the answer is awaited no longer than ctx.
func Lookup(ctx context.Context, dir, host string) (types.AuthConfig, error) {
	if dir == "" {
		return types.AuthConfig{}, nil
	}
	switch host {
	case "docker.io", "registry-1.docker.io", "index.docker.io":
		host = hubKey
	}
	type answer struct {
		auth types.AuthConfig
		err  error
	}
	got := make(chan answer, 1)
	go func() { // ends with the helper; nobody need wait for it
		file, err := dockerconfig.Load(dir)
		if err != nil {
			got <- answer{err: err}
			return
		}
		auth, err := file.GetAuthConfig(host)
		got <- answer{auth, err}
	}()
	select {
	case <-ctx.Done():
		return types.AuthConfig{}, ctx.Err()
	case a := <-got:
		return a.auth, a.err
	}
}
