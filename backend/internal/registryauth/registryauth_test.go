//go:build unix

package registryauth_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/docker/cli/cli/config/types"

	"github.com/workcell-dev/workcell/backend/internal/registryauth"
)

// TestCredentialHelper: a credential helper starts in the directory of the configuration, whatever the working directory holds, and ends
// with its caller.
func TestCredentialHelper(t *testing.T) {
	programs, dir := t.TempDir(), t.TempDir()
	script := `#!/bin/sh
read host
case $host in
known) printf '{"ServerURL": "known", "Username": "%s", "Secret": "s3cret"}' "$PWD" ;;
token) printf '{"ServerURL": "token", "Username": "<token>", "Secret": "s3cret"}' ;;
hangs) sleep 1000 ;;
*) echo "credentials not found in native keychain"; exit 1 ;;
esac
`
	if err := errors.Join(os.WriteFile(filepath.Join(programs, "docker-credential-test"), []byte(script), 0o700),
		os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"credsStore": "test"}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	t.Chdir(t.TempDir())
	for host, want := range map[string]types.AuthConfig{
		"known": {Username: dir, Password: "s3cret", ServerAddress: "known"}, "token": {IdentityToken: "s3cret", ServerAddress: "token"}, "other": {},
	} {
		if got, err := registryauth.Lookup(t.Context(), dir, host); err != nil || got != want {
			t.Errorf("%s: %+v, %v", host, got, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := registryauth.Lookup(ctx, dir, "hangs"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a helper that hangs: %v", err)
	}
}
