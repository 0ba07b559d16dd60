package egress

import "strings"

// noProxy is what programs reach without the proxy: the sandbox itself.
const noProxy = "localhost,127.0.0.1,::1"

// Env returns the variables by which programs inside find the proxy at addr. curl, git, apt, Go and most others go by
// those of the proxy; pip, npm and Node have their own besides. ALL_PROXY names HTTP, too.
func Env(addr string) map[string]string {
	proxy := "http://" + addr
	env := map[string]string{
		"PIP_PROXY":              proxy,
		"npm_config_proxy":       proxy,
		"npm_config_https_proxy": proxy,
		"npm_config_noproxy":     noProxy,
		"NODE_USE_ENV_PROXY":     "1",
		"NO_PROXY":               noProxy,
		"no_proxy":               noProxy,
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		env[name], env[strings.ToLower(name)] = proxy, proxy
	}
	return env
}
