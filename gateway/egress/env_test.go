package egress_test

import (
	"testing"

	"github.com/workcell-dev/workcell/gateway/egress"
)

// TestEnv: programs that do not know the usual variables get the address of the proxy in their format.
func TestEnv(t *testing.T) {
	t.Parallel()
	env := egress.Env("127.0.0.1:3128")
	for name, want := range map[string]string{
		"https_proxy": "http://127.0.0.1:3128",
		"JAVA_TOOL_OPTIONS": "-Daether.connector.http.useSystemProperties=true " +
			"-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=3128 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=3128",
		"GIT_SSH_COMMAND": "ssh -o StrictHostKeyChecking=accept-new -o ProxyCommand='/.workcell/workcell-guest tunnel %h %p'",
	} {
		if env[name] != want {
			t.Errorf("%s=%s, want %s", name, env[name], want)
		}
	}
}
