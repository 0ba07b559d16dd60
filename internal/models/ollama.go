package models

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/hint"
)

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

// OllamaError returns err with a hint when the Ollama server cannot be reached, which the plugin's own error does not
// show.
func OllamaError(ctx context.Context, e environ.Lookup, err error) error {
	address := ollamaAddress(e.Get("OLLAMA_HOST"))
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
	return hint.New(hint.Model, err, fmt.Sprintf("no Ollama answers at %s: start it with `ollama serve`, or set OLLAMA_HOST", address))
}
