// Package egress is the network's door: the one way out of a sandbox without a network. Code inside connects to a proxy
// on its own loopback, by HTTP; the host resolves the name, holds it and its addresses to rules, and connects. TLS
// passes as it is, once its ClientHello was seen to name the same host.
//
// Spans: egress.Connect, for each connection that was asked for.
package egress

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/gateway/services"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/sandbox"
)

// serviceName is the service of a session that commands reach the gateway by.
const serviceName = "egress"

// Limits of one sandbox. A zero field is the default.
type Limits struct {
	Conns int           // connections open at once; 64, the most are 128
	Bytes int64         // of all connections, both directions; 16 GiB
	Time  time.Duration // of one connection; an hour
	Idle  time.Duration // of one connection without a byte; 5 minutes
}

func (l Limits) withDefaults() Limits {
	return Limits{cmp.Or(l.Conns, 64), cmp.Or(l.Bytes, 16<<30), cmp.Or(l.Time, time.Hour), cmp.Or(l.Idle, 5*time.Minute)}
}

// Resolver resolves names on the host, which end in a dot; a *net.Resolver does.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options configure a Gateway. Zero fields are defaults.
type Options struct {
	// AllowPrivate are networks that may be reached though they are not public: loopback, private ones, those of the host.
	AllowPrivate []netip.Prefix
	// Grants is the directory in which operators allow sandboxes more (Allow). Empty: they cannot.
	Grants string
	// Services are the HTTP services that sandboxes can use as http://NAME.workcell. May be nil.
	Services *services.Gateway
	// Limits bound each sandbox, except for its requests to services.
	Limits Limits
	// Resolver resolves names. Nil is net.DefaultResolver.
	Resolver Resolver
	// Log has a line for each decision. Nil discards.
	Log *slog.Logger
	// TracerProvider makes spans. Nil is the global one.
	TracerProvider trace.TracerProvider
}

// Gateway connects sandboxes to the hosts that they may reach. It is what session.Options.Egress takes, and safe for
// concurrent use.
type Gateway struct {
	o    Options
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu    sync.Mutex // guards doors
	doors map[string]*door
}

var _ sandbox.EgressGateway = (*Gateway)(nil)

// New returns a gateway. Nil options are defaults.
func New(o *Options) (*Gateway, error) {
	g := &Gateway{doors: map[string]*door{}, dial: (&net.Dialer{Timeout: dialTime}).DialContext}
	if o != nil {
		g.o = *o
	}
	g.o.AllowPrivate = slices.Clone(g.o.AllowPrivate)
	g.o.Limits = g.o.Limits.withDefaults()
	if l := g.o.Limits; l.Conns < 1 || l.Conns > maxConns || l.Bytes < 1 || l.Time <= 0 || l.Idle <= 0 {
		return nil, fmt.Errorf("egress: limits %+v: %w", l, backend.ErrInvalid)
	}
	g.o.Resolver = cmp.Or[Resolver](g.o.Resolver, net.DefaultResolver)
	g.o.Log = cmp.Or(g.o.Log, slog.New(slog.DiscardHandler))
	g.o.TracerProvider = cmp.Or(g.o.TracerProvider, otel.GetTracerProvider())
	return g, nil
}

// maxConns is the most connections that a service of a session has at once.
const maxConns = 128

// door is the way out of one sandbox.
type door struct {
	g       *Gateway
	sandbox string
	set     *rules.HostSet
	web     *services.Set // nil for none
	bytes   atomic.Int64  // that may still pass
	conns   atomic.Int64  // open, those that are being refused too

	mu      sync.Mutex // guards refused
	refused []refusedAt
}

// Open returns the service by which a sandbox reaches what list allows, and what forgets the sandbox when its session
// has ended, with what an operator allowed it.
func (g *Gateway) Open(id string, list sandbox.Egress) (svc sandbox.Service, end func(), err error) {
	set, err := list.Compile()
	if err != nil {
		return svc, nil, fmt.Errorf("%w: network: %w", backend.ErrInvalid, err)
	}
	d := &door{g: g, sandbox: id, set: set}
	if d.web, err = g.o.Services.Open(id, list.Services, d.note); err != nil {
		return svc, nil, fmt.Errorf("services: %w", err)
	}
	d.bytes.Store(g.o.Limits.Bytes)
	g.mu.Lock()
	g.doors[id] = d
	g.mu.Unlock()
	return sandbox.Service{
		Name: serviceName, MaxConns: maxConns, // above Limits.Conns, serve refuses with a reason
		Env: func(addr string) map[string]string {
			env := Env(addr)
			maps.Copy(env, d.web.Env(addr))
			return env
		},
		Handle: func(ctx context.Context, c *sandbox.ServiceConn) { d.serve(ctx, c) },
	}, d.forget, nil
}

// forget ends a door, unless the sandbox has another one already.
func (d *door) forget() {
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	if d.g.doors[d.sandbox] != d {
		return
	}
	delete(d.g.doors, d.sandbox)
	if d.g.o.Grants != "" {
		_ = os.Remove(grantFile(d.g.o.Grants, d.sandbox)) // there is none, mostly
	}
}

// refusedAt is a refusal and when it was.
type refusedAt struct {
	sandbox.EgressRefusal
	at time.Time
}

// maxRefused is how many refusals of a sandbox are remembered.
const maxRefused = 64

// Refused returns what a sandbox was refused since a time, each host once.
func (g *Gateway) Refused(id string, since time.Time) []sandbox.EgressRefusal {
	g.mu.Lock()
	d := g.doors[id]
	g.mu.Unlock()
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []sandbox.EgressRefusal
	for _, r := range d.refused {
		if !r.at.Before(since) && !slices.Contains(list, r.EgressRefusal) {
			list = append(list, r.EgressRefusal)
		}
	}
	return list
}

func (d *door) note(r sandbox.EgressRefusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.refused) == maxRefused {
		d.refused = slices.Delete(d.refused, 0, 1)
	}
	d.refused = append(d.refused, refusedAt{r, time.Now()})
}
