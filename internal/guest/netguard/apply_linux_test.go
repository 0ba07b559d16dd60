package netguard

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRulesetOrder verifies that the rules for loopback, resolvers, and Allow come before the rejecting rules, because
// the first match decides.
func TestRulesetOrder(t *testing.T) {
	t.Parallel()
	r := Rules{
		Allow:     []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")},
		Deny:      []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::/32")},
		Resolvers: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::1")},
	}
	closed := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	var got []string
	for _, m := range ruleset(r, closed, true) {
		if m.kind == unix.NFT_MSG_NEWRULE {
			got = append(got, string(m.attrs))
		}
	}
	resolver := to(netip.MustParsePrefix("10.0.0.2/32"))
	var want []string
	for _, m := range []message{
		rule(loopback(), accept()),
		rule(begins(), tooFast(), reject()),
		rule(begins(), tooMany(), reject()),
		rule(resolver, port(unix.IPPROTO_UDP, 53), accept()),
		rule(resolver, port(unix.IPPROTO_TCP, 53), accept()),
		rule(to(r.Allow[0]), accept()),
		rule(to(closed[0]), reject()),
		rule(to(r.Deny[0]), reject()),
		rule(family(unix.NFPROTO_IPV6), reject()),
	} {
		want = append(want, string(m.attrs))
	}
	if len(got) != len(want) {
		t.Fatalf("%d rules, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("rule %d: %x, want %x", i, got[i], want[i])
		}
	}
}

func TestFramesAreAligned(t *testing.T) {
	t.Parallel()
	batch, last := encodeBatch(ruleset(Rules{}, Closed(), true))
	if len(batch)%unix.NLMSG_ALIGNTO != 0 || last == 0 {
		t.Errorf("batch of %d bytes, last message %d", len(batch), last)
	}
	seen := uint32(0)
	for len(batch) > 0 {
		size := order.Uint32(batch)
		if size < unix.NLMSG_HDRLEN || int(size) > len(batch) {
			t.Fatalf("message of %d bytes in %d", size, len(batch))
		}
		seen = max(seen, order.Uint32(batch[8:]))
		batch = batch[size:]
	}
	if seen != last {
		t.Errorf("last message %d, want %d", seen, last)
	}
}
