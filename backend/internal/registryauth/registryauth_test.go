//go:build unix

package registryauth_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/docker/cli/cli/config/types"

	"github.com/workcell-dev/workcell/backend/internal/registryauth"
)

// TestCredentialHelper verifies that a credential helper starts in the directory of the configuration and not in the
// working directory. It also verifies that Lookup logs a warning and returns no credentials if a helper is missing,
// fails, or hangs, so that public images can still be pulled.
func TestCredentialHelper(t *testing.T) {
	programs, dir := t.TempDir(), t.TempDir()
	const script = `#!/bin/sh
read host
echo $host >> asked
case $host in
known) printf '{"ServerURL": "known", "Username": "%s", "Secret": "s3cret"}' "$PWD" ;;
token) printf '{"ServerURL": "token", "Username": "<token>", "Secret": "s3cret"}' ;;
hangs) exec sleep 1000 ;;
fails) echo no keychain; exit 1 ;;
*) echo "credentials not found in native keychain"; exit 1 ;;
esac
`
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(programs, "docker-credential-test"), []byte(script), 0o700))
	const config = `{"credsStore": "test", "credHelpers": {"missing": "absent"}}`
	must(os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	t.Chdir(t.TempDir())
	for host, want := range map[string]struct {
		auth    types.AuthConfig
		warning string
	}{
		"known":   {types.AuthConfig{Username: dir, Password: "s3cret", ServerAddress: "known"}, ""},
		"token":   {types.AuthConfig{IdentityToken: "s3cret", ServerAddress: "token"}, ""},
		"other":   {},
		"fails":   {warning: "docker-credential-test: .*no keychain"},
		"hangs":   {warning: "docker-credential-test: .*deadline exceeded"},
		"missing": {warning: "docker-credential-absent: .*not found"},
	} {
		var log strings.Builder
		got := registryauth.Lookup(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), dir, host)
		warned := (log.Len() > 0) == (want.warning != "") && regexp.MustCompile(want.warning).MatchString(log.String())
		if got != want.auth || !warned {
			t.Errorf("%s: %+v, %s", host, got, log.String())
		}
	}
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	must(err)
	if n := strings.Count(string(asked), "\n"); n != 5 {
		t.Errorf("the helper was asked %d times:\n%s", n, asked)
	}
	must(os.WriteFile(filepath.Join(dir, "config.json"), []byte("{"), 0o600))
	if got := registryauth.Lookup(t.Context(), slog.New(slog.DiscardHandler), dir, "known"); got != (types.AuthConfig{}) {
		t.Errorf("a malformed configuration has %+v", got)
	}
}
