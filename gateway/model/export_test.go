package model

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/workcell-dev/workcell/internal/httpconn"
)

// Check checks a request body for a path with an unused budget. It returns the forwarded body.
func Check(d Dialect, path string, g Grant, body []byte) (out []byte, status int) {
	r, ok := routeOf([]Dialect{d}, http.MethodPost, path)
	if !ok {
		return nil, http.StatusNotFound
	}
	left := int64(maxTokens)
	if g.Budget.OutputTokens > 0 {
		left = g.Budget.OutputTokens
	}
	c, err := check(r, g, body, func(*checked) int64 { return left })
	var f *refusal
	if errors.As(err, &f) {
		return nil, f.status
	}
	return c.body, http.StatusOK
}

// Meter returns the usage of an answer that arrives in parts, and whether the answer contained it.
func Meter(d Dialect, stream bool, parts ...[]byte) (used [6]int64, final bool) {
	m := &meter{dialect: d, stream: stream}
	for _, p := range parts {
		if _, err := m.Write(p); err != nil {
			return used, false
		}
	}
	m.end()
	t := m.used
	return [6]int64{t.input, t.output, t.cacheRead, t.cacheWrite, t.cacheWriteLong, t.reasoning}, m.final
}

// Cost returns the cost of a request, and whether the model has a price.
func (p Prices) Cost(provider, model string, input, output, cacheRead, cacheWrite, cacheWriteLong int64) (float64, bool) {
	price, ok := p.of(provider, model)
	return price.cost(tokens{input: input, output: output, cacheRead: cacheRead, cacheWrite: cacheWrite, cacheWriteLong: cacheWriteLong}), ok
}

// Refuse answers with a refusal.
func (d Dialect) Refuse(w http.ResponseWriter, status int, message string) {
	d.refuse(w, &refusal{status: status, message: message})
}

// ServeConn serves one connection.
func ServeConn(ctx context.Context, c net.Conn, h http.Handler) {
	httpconn.Serve(ctx, c, h, headerTime)
}

// Handler returns the handler for the requests of a sandbox.
func (p *Proxy) Handler(sandbox string) http.Handler { return p.handler(sandbox) }
