package egress

import (
	"net"
	"net/netip"
	"slices"

	"github.com/workcell-dev/workcell/internal/guest/netguard"
)

var public = netip.MustParsePrefix(netguard.Public6)

// closed4 lists IPv4 networks for documentation and retired relays. They are refused in addition to the networks closed
// to every bridged sandbox.
var closed4 = []netip.Prefix{
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("192.88.99.0/24"),
}

// addressRule returns the rule against an address, or an empty string if the address is allowed. NAT64 is outside of
// 2000::/3 and always refused, to prevent connections to IPv4 addresses without a check by the IPv4 rules.
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

// ownNetworks returns the networks of the host's interfaces: the host's addresses and neighbors, and the bridges of
// container engines.
func ownNetworks() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var list []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil { // other addresses are not internet addresses
			list = append(list, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()).Masked())
		}
	}
	return list, nil
}
