package egress

import (
	"net"
	"net/netip"
	"slices"

	"github.com/workcell-dev/workcell/internal/guest/netguard"
)

var public = netip.MustParsePrefix(netguard.Public6)

// closed4 are addresses of IPv4 for documentation and retired relays, besides those that no bridged sandbox reaches
// either.
var closed4 = []netip.Prefix{
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("192.88.99.0/24"),
}

// addressRule returns why an address may not be reached; empty when it may. NAT64, which is not in 2000::/3, is closed
// as a whole: what lies behind it is IPv4 that has addresses of its own.
func addressRule(a netip.Addr, allowed, own []netip.Prefix) string {
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	a = a.Unmap().WithZone("")
	switch {
	case in(allowed):
		return ""
	case a.IsLoopback():
		return "loopback"
	case a.IsLinkLocalUnicast(), a.IsLinkLocalMulticast():
		return "link-local"
	case a.IsMulticast():
		return "multicast"
	case a.IsPrivate():
		return "private"
	case a.Is4() && (in(netguard.Closed()) || in(closed4)), a.Is6() && (!public.Contains(a) || in(netguard.Closed6())):
		return "not public"
	case in(own):
		return "in one of the host's networks"
	}
	return ""
}

// ownNetworks returns the networks that the host's interfaces are in: its own addresses, its neighbours, its engines'
// bridges.
func ownNetworks() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var list []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil { // any other is none of the internet's
			list = append(list, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()).Masked())
		}
	}
	return list, nil
}
