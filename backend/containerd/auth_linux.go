package containerd

import (
	"context"
	"fmt"

	dockerconfig "github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
)

// hubKey is how Docker's configuration names its own registry.
const hubKey = "https://index.docker.io/v1/"

// registryAuth gives the credentials for a registry's host in the form that containerd's client takes: user and
// password, or no user and a token. Credential helpers are asked, which are programs that may hang: the answer is
// awaited no longer than ctx.
func registryAuth(ctx context.Context, dir, host string) (user, secret string, err error) {
	if dir == "" {
		return "", "", nil
	}
	key := host
	switch host {
	case "docker.io", "registry-1.docker.io", "index.docker.io":
		key = hubKey
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
		auth, err := file.GetAuthConfig(key)
		got <- answer{auth, err}
	}()
	select {
	case <-ctx.Done():
		return "", "", ctx.Err()
	case a := <-got:
		switch {
		case a.err != nil:
			return "", "", fmt.Errorf("registry credentials: %w", a.err)
		case a.auth.IdentityToken != "":
			return "", a.auth.IdentityToken, nil
		}
		return a.auth.Username, a.auth.Password, nil
	}
}
