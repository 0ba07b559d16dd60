package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/ollama"
)

// ollamaTimeoutSeconds bounds one answer. The plugin's own default, 30 s, is less than a large local model needs.
const ollamaTimeoutSeconds = 600

// ollamaModels is a local Ollama server; OLLAMA_HOST names another one.
func ollamaModels() provider {
	return provider{
		build: func(e env) api.Plugin {
			return &ollama.Ollama{ServerAddress: ollamaAddress(e.get("OLLAMA_HOST")), Timeout: ollamaTimeoutSeconds}
		},
	}
}

// ollamaAddress reads OLLAMA_HOST as Ollama's own commands do: scheme and port may be left out, and an address to
// listen on everywhere means this machine.
func ollamaAddress(host string) string {
	const port = "11434"
	host = strings.TrimRight(strings.TrimSpace(host), "/")
	if host == "" {
		return "http://127.0.0.1:" + port
	}
	scheme, rest, ok := strings.Cut(host, "://")
	if !ok {
		scheme, rest = "http", host
	}
	name, p, err := net.SplitHostPort(rest)
	if err != nil {
		name, p = strings.Trim(rest, "[]"), port
		if ok {
			return host // a URL says what it means
		}
	}
	if name == "" || name == "0.0.0.0" || name == "::" {
		name = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(name, p)
}

// ollamaError tells of a server that cannot be reached, which the plugin's own error does not let anybody test for.
func ollamaError(ctx context.Context, e env, err error) error {
	address := ollamaAddress(e.get("OLLAMA_HOST"))
	u, perr := url.Parse(address)
	if perr != nil {
		return err
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme // "http" is a port's name, too
	}
	dialer := net.Dialer{Timeout: 2 * time.Second}
	conn, derr := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if derr == nil {
		conn.Close() // nothing was sent
		return err
	}
	if ctx.Err() != nil {
		return err
	}
	return fail(exitModel, err, fmt.Sprintf("no Ollama answers at %s: start it with `ollama serve`, or set OLLAMA_HOST", address))
}
