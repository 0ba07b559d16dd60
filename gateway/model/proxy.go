// Package model provides a model proxy. It lets code in a sandbox without a network use models without knowing the
// provider's key.
//
// A [Proxy] knows model providers and holds their keys. [Proxy.Issue] creates a [Lease] with a scoped key. Until the
// lease is closed, the key is valid in one sandbox, for one provider, some models, and a budget. [Proxy.Attach] serves
// a session. In the sandbox, the base URL of a provider is http://127.0.0.1:PORT/PROVIDER.
//
// The proxy forwards only requests to run a model, to count tokens, or to list models. It checks their bodies: it
// refuses models outside of the lease, removes provider tools, and refuses content from URLs. It counts tokens while
// the answers pass, streamed or not.
//
// Each request to run a model has a span "chat MODEL" below the span of the lease. The span has no contents.
package model

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/httpconn"
	"github.com/workcell-dev/workcell/sandbox"
)

// Provider is a model API on the network.
type Provider struct {
	Name     string // first part of the path in the sandbox
	Dialects []Dialect
	// Base is the URL without "/v1/messages" of Anthropic, "/responses" and "/chat/completions" of OpenAI, and
	// "/v1beta/models" of Gemini.
	Base *url.URL
	Auth func(http.Header) error // sets the key; nil if the provider needs no key
}

// Options configures New.
type Options struct {
	Log            *slog.Logger         // if nil, slog.Default
	TracerProvider trace.TracerProvider // if nil, the global provider
	Prices         Prices               // if nil, DefaultPrices
	Transport      http.RoundTripper    // if nil, a transport like http.DefaultTransport
}

// Proxy forwards requests from sandboxes to model providers. It is safe for concurrent use.
type Proxy struct {
	providers map[string]Provider
	o         Options

	mu     sync.Mutex        // guards leases
	leases map[string]*Lease // by key
}

// New returns a proxy for providers. If a provider is incomplete or its name is invalid or repeated, the error wraps
// backend.ErrInvalid. opts may be nil.
func New(providers []Provider, opts *Options) (*Proxy, error) {
	p := &Proxy{o: *cmp.Or(opts, &Options{}), providers: map[string]Provider{}, leases: map[string]*Lease{}}
	p.o.Log = cmp.Or(p.o.Log, slog.Default())
	p.o.TracerProvider = cmp.Or(p.o.TracerProvider, otel.GetTracerProvider())
	if p.o.Prices == nil {
		p.o.Prices = DefaultPrices()
	}
	p.o.Transport = cmp.Or(p.o.Transport, httpconn.NewTransport())
	for _, pr := range providers {
		switch {
		case !modelName.MatchString(pr.Name) || pr.Base == nil || pr.Base.Host == "" || len(pr.Dialects) == 0:
			return nil, fmt.Errorf("%w: provider %q requires a name, an address, and a dialect", backend.ErrInvalid, pr.Name)
		case p.providers[pr.Name].Name != "":
			return nil, fmt.Errorf("%w: duplicate provider %s", backend.ErrInvalid, pr.Name)
		}
		p.providers[pr.Name] = pr
	}
	return p, nil
}

// Dialects returns the dialects of a provider. It returns nil for an unknown provider.
func (p *Proxy) Dialects(provider string) []Dialect { return p.providers[provider].Dialects }

// serviceName is the session service for connections to the proxy.
const serviceName = "model"

// Attachment is a session whose commands can use the proxy.
type Attachment struct{ addr string }

// Attach makes this process serve the model requests of a session's commands until the session is closed. Every request
// without a lease is refused, so attaching a session twice costs nothing.
func (p *Proxy) Attach(ctx context.Context, s *sandbox.Sandbox) (*Attachment, error) {
	h := p.handler(s.ID())
	handle := func(ctx context.Context, c *sandbox.ServiceConn) { httpconn.Serve(ctx, c, h, headerTime) }
	addr, _, err := s.Serve(ctx, sandbox.Service{Name: serviceName, Handle: handle})
	if err != nil && addr == "" {
		return nil, fmt.Errorf("model: %w", err)
	}
	return &Attachment{addr: addr}, nil
}

// BaseURL returns the URL of a provider in the sandbox.
func (a *Attachment) BaseURL(provider string) string { return "http://" + a.addr + "/" + provider }

// headerTime is the maximum time to receive a request header.
const headerTime = 10 * time.Second
