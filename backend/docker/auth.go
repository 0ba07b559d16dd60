package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/distribution/reference"
	dockerconfig "github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
	"github.com/docker/docker/api/types/registry"
)

// hubKey is how Docker's configuration names its own registry.
const hubKey = "https://index.docker.io/v1/"

// registryAuth gives the credentials for the registry of ref in the form that the engine takes; empty when there are
// none. Credential helpers are asked, which are programs that may hang: the answer is awaited no longer than ctx.
func registryAuth(ctx context.Context, dir, ref string) (string, error) {
	if dir == "" {
		return "", nil
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("reference: %w", err)
	}
	key := reference.Domain(named)
	if key == "docker.io" {
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
		return "", ctx.Err()
	case a := <-got:
		if a.err != nil || a.auth == (types.AuthConfig{}) {
			return "", a.err
		}
		return encodeAuth(a.auth)
	}
}

func encodeAuth(a types.AuthConfig) (string, error) {
	js, err := json.Marshal(registry.AuthConfig{
		Username: a.Username, Password: a.Password, Auth: a.Auth,
		ServerAddress: a.ServerAddress, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
	})
	if err != nil {
		return "", err
	}
	return base64.URLEncoding.EncodeToString(js), nil
}
