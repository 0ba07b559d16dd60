package egress

import (
	"fmt"
	"net"
	"strings"

	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// noProxy lists the destinations for which programs skip the proxy: the sandbox itself.
const noProxy = "localhost,127.0.0.1,::1"

// Env returns the environment variables for the proxy at addr. curl, git, apt, Go, and most other programs use the
// common proxy variables. pip, npm, and Node also need separate variables. ALL_PROXY also has an http:// address.
//
// Java reads only system properties, and Maven 3.9 only with a further property. ssh starts a program to make the
// connection. Without a terminal, it cannot ask whether to trust a new host.
func Env(addr string) map[string]string {
	proxy := "http://" + addr
	command := "ProxyCommand='" + embed.Path + " tunnel %h %p'"
	host, port, _ := net.SplitHostPort(addr)
	java := []string{"-Daether.connector.http.useSystemProperties=true"}
	for _, scheme := range []string{"http", "https"} {
		java = append(java, fmt.Sprintf("-D%[1]s.proxyHost=%[2]s -D%[1]s.proxyPort=%[3]s", scheme, host, port))
	}
	env := map[string]string{
		"PIP_PROXY":              proxy,
		"npm_config_proxy":       proxy,
		"npm_config_https_proxy": proxy,
		"npm_config_noproxy":     noProxy,
		"NODE_USE_ENV_PROXY":     "1",
		"JAVA_TOOL_OPTIONS":      strings.Join(java, " "),
		"GIT_SSH_COMMAND":        "ssh -o StrictHostKeyChecking=accept-new -o " + command,
		"NO_PROXY":               noProxy,
		"no_proxy":               noProxy,
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		env[name], env[strings.ToLower(name)] = proxy, proxy
	}
	return env
}
