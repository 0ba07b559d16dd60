package containerd

import (
	"context"
	"errors"
	"fmt"

	"github.com/workcell-dev/workcell/backend/internal/registryauth"
)

// registryAuth returns the credentials for a registry's host in the form that containerd's client takes: user and
// password, or no user and a token.
func registryAuth(ctx context.Context, dir, host string) (user, secret string, err error) {
	a, err := registryauth.Lookup(ctx, dir, host)
	switch {
	case err != nil && errors.Is(err, ctx.Err()):
		return "", "", err
	case err != nil:
		return "", "", fmt.Errorf("registry credentials: %w", err)
	case a.IdentityToken != "":
		return "", a.IdentityToken, nil
	}
	return a.Username, a.Password, nil
}
