package egress

import (
	"context"
	"net"
	"net/netip"
	"strings"
)

// Internals that tests look at.
var (
	AddressRule = addressRule
	ServerName  = serverName
	ErrECH      = errECH
)

// SetDial has the gateway connect by another function.
func (g *Gateway) SetDial(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	g.dial = dial
}

// Serve answers a connection of a sandbox that Open was called for.
func (g *Gateway) Serve(ctx context.Context, id string, conn net.Conn) {
	g.mu.Lock()
	d := g.doors[id]
	g.mu.Unlock()
	d.serve(ctx, conn)
}

// Names is a resolver that knows some names.
type Names map[string][]netip.Addr

// LookupNetIP returns the addresses of a name.
func (n Names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if a := n[strings.TrimSuffix(host, ".")]; a != nil {
		return a, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}
