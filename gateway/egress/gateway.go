// Package egress implements the egress proxy, which is the only network access of a sandbox without a network. Code in
// the sandbox connects to an HTTP proxy on the loopback interface. The host resolves the name, checks the name and the
// addresses against the rules, and connects. TLS passes unchanged if the ClientHello has the same host name.
//
// Spans: egress.Connect, for each requested connection.
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

// serviceName is the session service for connections to the gateway.
const serviceName = "egress"

// Limits are the limits of one sandbox. Zero fields use the defaults.
type Limits struct {
	Conns int           // open connections; default 64, maximum 128
	Bytes int64         // sum over all connections and both directions; default 16 GiB
	Time  time.Duration // maximum duration of one connection; default 1 hour
	Idle  time.Duration // maximum time without data on one connection; default 5 minutes
}

// Resolver resolves names on the host. The names end with a dot. *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options configures a Gateway. Zero fields use the defaults.
type Options struct {
	// AllowPrivate lists non-public networks to allow, for example loopback, private networks, and the host's networks.
	AllowPrivate []netip.Prefix
	// Grants is the directory with additional hosts for single sandboxes (see Allow). If empty, operators cannot allow
	// additional hosts.
	Grants string
	// Services are the HTTP services for sandboxes, as http://NAME.workcell. May be nil.
	Services *services.Gateway
	// Limits bound each sandbox, except for requests to services.
	Limits Limits
	// Resolver resolves names. If nil, it defaults to net.DefaultResolver.
	Resolver Resolver
	// Log logs each decision. If nil, decisions are not logged.
	Log *slog.Logger
	// TracerProvider creates spans. If nil, it defaults to the global provider.
	TracerProvider trace.TracerProvider
}

// Gateway connects sandboxes to their allowed hosts. It implements session.Options.Egress and is safe for concurrent
// use.
type Gateway struct {
	o    Options
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu    sync.Mutex // guards doors
	doors map[string]*door
}

var _ sandbox.EgressGateway = (*Gateway)(nil)

// New returns a gateway. If o is nil, it uses the defaults. If a limit is negative or above the maximum, the error
// wraps backend.ErrInvalid.
func New(o *Options) (*Gateway, error) {
	g := &Gateway{o: *cmp.Or(o, &Options{}), doors: map[string]*door{}, dial: (&net.Dialer{Timeout: dialTime}).DialContext}
	g.o.AllowPrivate = slices.Clone(g.o.AllowPrivate)
	l := &g.o.Limits
	l.Conns, l.Bytes = cmp.Or(l.Conns, 64), cmp.Or(l.Bytes, 16<<30)
	l.Time, l.Idle = cmp.Or(l.Time, time.Hour), cmp.Or(l.Idle, 5*time.Minute)
	if l.Conns < 1 || l.Conns > maxConns || l.Bytes < 1 || l.Time <= 0 || l.Idle <= 0 {
		return nil, fmt.Errorf("egress: limits %+v: %w", *l, backend.ErrInvalid)
	}
	g.o.Resolver = cmp.Or[Resolver](g.o.Resolver, net.DefaultResolver)
	g.o.Log = cmp.Or(g.o.Log, slog.New(slog.DiscardHandler))
	g.o.TracerProvider = cmp.Or(g.o.TracerProvider, otel.GetTracerProvider())
	return g, nil
}

// maxConns is the maximum number of concurrent connections to a session's service.
const maxConns = 128

// door is the network access of one sandbox.
type door struct {
	g       *Gateway
	sandbox string
	set     *rules.HostSet
	web     *services.Set // nil for none
	bytes   atomic.Int64  // remaining
	conns   atomic.Int64  // open, including refused connections
	denied  atomic.Int64  // refused connections

	mu      sync.Mutex // guards refused
	refused []refusedAt
}

// Open returns the service for a sandbox with access to the hosts in list. After the session has ended, the caller must
// call end. The additional hosts allowed by an operator apply until DropGrants.
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

// forget removes a door, unless the sandbox already has a new door.
func (d *door) forget() {
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	if d.g.doors[d.sandbox] == d {
		delete(d.g.doors, d.sandbox)
	}
}

// DropGrants removes the additional hosts of a sandbox. Session managers call it when the sandbox's owner changes.
func (g *Gateway) DropGrants(id string) {
	if g.o.Grants != "" {
		_ = os.Remove(grantFile(g.o.Grants, id)) // the file usually does not exist
	}
}

// refusedAt is a refusal with the time.
type refusedAt struct {
	sandbox.EgressRefusal
	at time.Time
}

// maxRefused is the maximum number of remembered refusals per sandbox.
const maxRefused = 64

// Refused returns a sandbox's refusals since a time, with each host at most once. A gateway remembers the 64 latest
// refusals of a sandbox.
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
