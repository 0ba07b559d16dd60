package wish_test

import (
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/session"
)

// TestAnExplicitNo: an explicit "no" in a request overrides a base, and an explicit "no" in a base overrides a request.
func TestAnExplicitNo(t *testing.T) {
	t.Parallel()
	base := session.Request{Network: backend.NetworkBridge, Root: backend.RootWritable}
	no := frontmatter.Network{Enabled: new(false)}
	for _, tc := range []struct {
		say     frontmatter.Sandbox
		network backend.NetworkMode
		root    backend.RootMode
	}{
		{frontmatter.Sandbox{}, backend.NetworkBridge, backend.RootWritable},
		{frontmatter.Sandbox{Network: no, Root: frontmatter.RootReadonly}, backend.NetworkNone, backend.RootReadonly},
		{frontmatter.Sandbox{AllowNetwork: new(false)}, backend.NetworkNone, backend.RootWritable},
	} {
		got := wish.Request(frontmatter.Sandbox{Network: frontmatter.Network{Enabled: new(true)}}).WithDefaults(wish.Request(tc.say))
		if banned := tc.network == backend.NetworkNone; banned != (got.Network == backend.NetworkNone) {
			t.Errorf("a base of %+v: network %q", tc.say, got.Network)
		}
		if got := wish.Request(tc.say).WithDefaults(base); got.Network != tc.network || got.Root != tc.root {
			t.Errorf("%+v: network %q, root %v, want %q and %v", tc.say, got.Network, got.Root, tc.network, tc.root)
		}
	}
}
