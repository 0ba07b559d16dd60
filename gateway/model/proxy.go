// Package model lets code inside a sandbox without a network ask models, without having a key for them.
//
// A [Proxy] knows model providers and holds their keys. [Proxy.Issue] makes a [Lease]: a key of its own that is worth
// something in one sandbox, for one provider, some models and a budget, until it is closed. [Proxy.Attach] serves a
// session; inside, the base URL of a provider is http://127.0.0.1:PORT/PROVIDER.
//
// Only requests that ask a model, count tokens or list models pass. Their bodies are read: other models than those of
// the lease are refused, tools that the provider would run are removed, and content that the provider would fetch from
// a URL is refused. Tokens are counted in the answers, streamed or not, while these pass.
//
// Each request that asks a model is a span "chat MODEL" below that of the lease. It has no contents.
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
	Name     string // first part of the path inside
	Dialects []Dialect
	// Base is the address before "/v1/messages" of Anthropic, "/responses" and "/chat/completions" of OpenAI, and
	// "/v1beta/models" of Gemini.
	Base *url.URL
	Auth func(http.Header) error // sets the key; nil for a provider that needs none
}

// Options refine New.
type Options struct {
	Log            *slog.Logger         // slog.Default when nil
	TracerProvider trace.TracerProvider // the global one when nil
	Prices         Prices               // DefaultPrices when nil
	Transport      http.RoundTripper    // one like http.DefaultTransport when nil
}

// Proxy passes requests from sandboxes on to model providers. It is safe for concurrent use.
type Proxy struct {
	providers map[string]Provider
	o         Options

	mu     sync.Mutex        // guards leases
	leases map[string]*Lease // by key
}

// New returns a proxy for providers.
func New(providers []Provider, opts *Options) (*Proxy, error) {
	p := &Proxy{providers: map[string]Provider{}, leases: map[string]*Lease{}}
	if opts != nil {
		p.o = *opts
	}
	p.o.Log = cmp.Or(p.o.Log, slog.Default())
	p.o.TracerProvider = cmp.Or(p.o.TracerProvider, otel.GetTracerProvider())
	if p.o.Prices == nil {
		p.o.Prices = DefaultPrices()
	}
	if p.o.Transport == nil {
		p.o.Transport = httpconn.NewTransport()
	}
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

// Dialects returns those of a provider; none of one that the proxy does not know.
func (p *Proxy) Dialects(provider string) []Dialect { return p.providers[provider].Dialects }

// serviceName is the service of a session that commands reach the proxy by.
const serviceName = "model"

// Attachment is a session whose commands reach the proxy.
type Attachment struct{ addr string }

// Attach has this process answer the requests of a session's commands until the session closes. Without a lease every
// request is refused, so attaching a session twice costs nothing.
func (p *Proxy) Attach(ctx context.Context, s *sandbox.Sandbox) (*Attachment, error) {
	h := p.Handler(s.ID())
	addr, _, err := s.Serve(ctx, sandbox.Service{Name: serviceName, Handle: func(ctx context.Context, c *sandbox.ServiceConn) {
		httpconn.Serve(ctx, c, h, headerTime)
	}})
	if err != nil && addr == "" {
		return nil, fmt.Errorf("model: %w", err)
	}
	return &Attachment{addr: addr}, nil
}

// BaseURL returns the address of a provider inside the sandbox.
func (a *Attachment) BaseURL(provider string) string { return "http://" + a.addr + "/" + provider }

// headerTime is how long the header of a request may take to come.
const headerTime = 10 * time.Second
