package docker

import (
	"context"
	"fmt"

	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config/types"
	"github.com/docker/docker/api/types/registry"

	"github.com/workcell-dev/workcell/backend/internal/registryauth"
)

// registryAuth returns the credentials for the registry of ref in the engine's format. It returns an empty string if no
// credentials exist.
func (b *driver) registryAuth(ctx context.Context, ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("reference: %w", err)
	}
	a := registryauth.Lookup(ctx, b.opts.Logger, b.opts.ConfigDir, reference.Domain(named))
	if a == (types.AuthConfig{}) {
		return "", nil
	}
	return registry.EncodeAuthConfig(registry.AuthConfig{
		Username: a.Username, Password: a.Password, Auth: a.Auth,
		ServerAddress: a.ServerAddress, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
	})
}
