package egress_test

import (
	"net/netip"
	"testing"

	"github.com/workcell-dev/workcell/gateway/egress"
)

func TestAddressRule(t *testing.T) {
	t.Parallel()
	allowed := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("fd00::/64")}
	own := []netip.Prefix{netip.MustParsePrefix("8.8.4.0/24"), netip.MustParsePrefix("2a00:1::/64")}
	for addr, want := range map[string]string{
		"1.1.1.1": "", "93.184.216.34": "", "2606:4700::1111": "", "::ffff:1.1.1.1": "",
		"10.1.2.3": "", "127.0.0.1": "", "fd00::7": "", "::ffff:127.0.0.1": "", // allowed by AllowPrivate
		"127.0.0.2": "loopback", "::1": "loopback", "::ffff:127.0.0.2": "loopback",
		"10.2.0.1": "private", "172.31.255.255": "private", "192.168.0.1": "private", "fc00::1": "private",
		"169.254.169.254": "link-local", "fe80::1": "link-local", "ff02::1": "link-local",
		"fd00:ec2::254": "private", "168.63.129.16": "not public", // cloud metadata services
		"224.0.0.251": "link-local", "239.1.1.1": "multicast", "ff0e::1": "multicast",
		"100.64.0.1": "not public", "100.127.255.255": "not public", // CGNAT
		"64:ff9b::a00:1": "not public", "64:ff9b:1::1": "not public", // NAT64
		"2002:a00:1::": "not public", "2001::1": "not public", "2001:db8::1": "not public",
		"::10.0.0.1": "not public", "::": "not public", "0.0.0.0": "not public", "0.1.2.3": "not public",
		"192.0.0.8": "not public", "192.0.2.1": "not public", "198.18.0.1": "not public", "198.51.100.7": "not public", "203.0.113.9": "not public",
		"240.0.0.1": "not public", "255.255.255.255": "not public", "fec0::1": "not public", "100::1": "not public",
		"8.8.4.4": "in one of the host's networks", "2a00:1::9": "in one of the host's networks", "8.8.8.8": "",
	} {
		if got := egress.AddressRule(netip.MustParseAddr(addr), allowed, own); got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
}
