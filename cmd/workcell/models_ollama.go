package main

import (
	"net"
	"strings"

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
