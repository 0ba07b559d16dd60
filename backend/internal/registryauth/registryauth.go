// Package registryauth reads registry credentials from Docker's configuration.
package registryauth

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"time"

	dockerconfig "github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
	"github.com/docker/docker-credential-helpers/client"
	"github.com/docker/docker-credential-helpers/credentials"
)

const (
	hubKey    = "https://index.docker.io/v1/" // key of Docker Hub in Docker's configuration
	tokenUser = "<token>"                     // user name to mark a credential helper's password as an identity token
)

// helperTime is the maximum time of a credential helper, because a pull waits for the helper.
const helperTime = 5 * time.Second

// Lookup returns the credentials for a registry's host from the configuration in dir. If dir is empty, it returns none.
// If it cannot read the credentials, Lookup logs a warning and returns none, because public images need no credentials.
// Lookup kills a credential helper when ctx ends. It starts the helper in dir, because the working directory may be a
// hostile repository.
func Lookup(ctx context.Context, log *slog.Logger, dir, host string) types.AuthConfig {
	if dir == "" {
		return types.AuthConfig{}
	}
	a, err := lookup(ctx, dir, host)
	if err != nil && ctx.Err() == nil {
		log.WarnContext(ctx, "cannot read registry credentials, pulling without them",
			"registry", host, "error", err)
	}
	return a
}

func lookup(ctx context.Context, dir, host string) (types.AuthConfig, error) {
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
	ctx, cancel := context.WithTimeout(ctx, helperTime)
	defer cancel()
	program := "docker-credential-" + name
	found, err := client.Get(func(args ...string) client.Program {
		h := helper{exec.CommandContext(ctx, program, args...)}
		h.Dir, h.WaitDelay = dir, time.Second
		return h
	}, host)
	switch {
	case credentials.IsErrCredentialsNotFound(err):
		return types.AuthConfig{}, nil
	case err != nil:
		return types.AuthConfig{}, fmt.Errorf("%s: %w", program, cmp.Or(ctx.Err(), err))
	case found.Username == tokenUser:
		return types.AuthConfig{IdentityToken: found.Secret, ServerAddress: found.ServerURL}, nil
	}
	return types.AuthConfig{Username: found.Username, Password: found.Secret, ServerAddress: found.ServerURL}, nil
}

type helper struct{ *exec.Cmd }

func (h helper) Input(in io.Reader) { h.Stdin = in }
