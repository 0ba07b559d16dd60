// Package registryauth looks up credentials of registries in Docker's configuration.
package registryauth

import (
	"cmp"
	"context"
	"io"
	"os/exec"
	"time"

	dockerconfig "github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
	"github.com/docker/docker-credential-helpers/client"
	"github.com/docker/docker-credential-helpers/credentials"
)

const (
	hubKey    = "https://index.docker.io/v1/" // how Docker's configuration names its own registry
	tokenUser = "<token>"                     // a user whose password is an identity token, in the protocol of credential helpers
)

// Lookup returns the credentials for a registry's host from the configuration in dir; none for an empty dir. A credential helper
// ends with ctx, and starts in dir: the working directory may be a hostile repository.
func Lookup(ctx context.Context, dir, host string) (types.AuthConfig, error) {
	if dir == "" {
		return types.AuthConfig{}, nil
	}
	switch host {
	case "docker.io", "registry-1.docker.io", "index.docker.io":
		host = hubKey
	}
	file, err := dockerconfig.Load(dir)
	if err != nil {
		return types.AuthConfig{}, err
	}
	name := cmp.Or(file.CredentialHelpers[host], file.CredentialsStore)
	if name == "" {
		return file.GetAuthConfig(host)
	}
	found, err := client.Get(func(args ...string) client.Program {
		h := helper{exec.CommandContext(ctx, "docker-credential-"+name, args...)}
		h.Dir, h.WaitDelay = dir, time.Second
		return h
	}, host)
	switch {
	case ctx.Err() != nil:
		return types.AuthConfig{}, ctx.Err()
	case credentials.IsErrCredentialsNotFound(err):
		return types.AuthConfig{}, nil
	case err != nil:
		return types.AuthConfig{}, err
	case found.Username == tokenUser:
		return types.AuthConfig{IdentityToken: found.Secret, ServerAddress: found.ServerURL}, nil
	}
	return types.AuthConfig{Username: found.Username, Password: found.Secret, ServerAddress: found.ServerURL}, nil
}

type helper struct{ *exec.Cmd }

func (h helper) Input(in io.Reader) { h.Stdin = in }
