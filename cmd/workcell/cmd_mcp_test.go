package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestMCPUsage verifies that invalid options are rejected before the first request to an engine.
func TestMCPUsage(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	checktest.Must(t, err)
	defer busy.Close() // no client connects
	short := filepath.Join(t.TempDir(), "tokens")
	checktest.Must(t, os.WriteFile(short, []byte("me short\n"), 0o600))
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--transport", "carrier-pigeon"}, app.ExitUsage, "transport"},
		{[]string{"--on-exit", "explode"}, app.ExitUsage, "--on-exit"},
		{[]string{"--network", "host"}, app.ExitUsage, "--network"},
		{[]string{"--runtime", "cobol"}, app.ExitUsage, "--runtime"},
		{[]string{"--listen", "127.0.0.1:1"}, app.ExitUsage, "--transport http"},
		{[]string{"--transport", "http", "--listen", "nonsense"}, app.ExitUsage, "--listen"},
		{[]string{"--transport", "http", "--listen", "0.0.0.0:0"}, app.ExitUsage, "tokens"},
		{[]string{"--transport", "http", "--listen", busy.Addr().String()}, app.ExitFailed, "address already in use"},
		{[]string{"--transport", "http", "--tls-cert", "x"}, app.ExitUsage, "--tls-key"},
		{[]string{"--transport", "http", "--token-file", short}, app.ExitInvalid, "token 1 (me): a token must have at least 16 characters"},
		{[]string{"--transport", "http", "--allow-origin", "nonsense"}, app.ExitInvalid, "nonsense"},
		{[]string{"--policy", "no-such-file"}, app.ExitInvalid, "no-such-file"},
		{[]string{"--policy", "main.go"}, app.ExitInvalid, "main.go:"},
		{[]string{"--transport", "http", "--max-connections", "-1"}, app.ExitUsage, "--max-connections"},
		{[]string{"--transport", "http", "--max-connections", "0"}, app.ExitUsage, "at least 1"},
		{[]string{"--transport", "http", "--max-rate", "-1"}, app.ExitUsage, "--max-rate"},
		{[]string{"--idle-timeout", "1ms"}, app.ExitUsage, "--idle-timeout"},
		{[]string{"extra"}, app.ExitUsage, `unexpected argument "extra"`},
	} {
		var stdout, stderr strings.Builder
		code := cli.Run(t.Context(), append([]string{"mcp", "--state-dir", t.TempDir()}, tc.args...), cli.New(strings.NewReader(""), &stdout, &stderr, ""), commands()...)
		if code != tc.code || !strings.Contains(stderr.String(), tc.want) || strings.Contains(stderr.String(), "serving") || stdout.Len() != 0 {
			t.Errorf("%q: exit code %d, standard error %q, standard output %q; want %d, %q", tc.args, code, stderr.String(), stdout.String(), tc.code, tc.want)
		}
	}
}
