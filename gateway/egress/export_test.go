package egress

import (
	"context"
	"net"
	"net/netip"
	"strings"
)

// Unexported identifiers for tests.
var (
	AddressRule = addressRule
	ServerName  = serverName
	ErrECH      = errECH
)

// SetDial replaces the function that connects to hosts.
func (g *Gateway) SetDial(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	g.dial = dial
}

// Serve serves a connection of a sandbox. Open must have been called for the sandbox.
func (g *Gateway) Serve(ctx context.Context, id string, conn net.Conn) {
	g.mu.Lock()
	d := g.doors[id]
	g.mu.Unlock()
	d.serve(ctx, conn)
}

// Names is a resolver with fixed names.
type Names map[string][]netip.Addr

// LookupNetIP returns the addresses of a name.
func (n Names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if a := n[strings.TrimSuffix(host, ".")]; a != nil {
		return a, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}
