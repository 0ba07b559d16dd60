package models

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/hint"
)

// ollamaAddress parses OLLAMA_HOST like Ollama's own commands. Scheme and port are optional. A wildcard listen address
// means the local host.
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
			return host // use a complete URL unchanged
		}
	}
	if name == "" || name == "0.0.0.0" || name == "::" {
		name = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(name, p)
}

// OllamaError adds a hint to err if the Ollama server is unreachable, because the plugin's own error does not show
// this.
func OllamaError(ctx context.Context, e environ.Lookup, err error) error {
	address := ollamaAddress(e.Get("OLLAMA_HOST"))
	bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, rerr := http.NewRequestWithContext(bounded, http.MethodHead, address, http.NoBody)
	if rerr != nil {
		return err
	}
	resp, rerr := http.DefaultClient.Do(req)
	if rerr == nil {
		resp.Body.Close() // the response has no body
	}
	if rerr == nil || ctx.Err() != nil {
		return err
	}
	return hint.New(hint.Model, err,
		fmt.Sprintf("cannot reach Ollama at %s: start it with `ollama serve`, or set OLLAMA_HOST", req.URL.Redacted()))
}
