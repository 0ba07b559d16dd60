//go:build linux

package server_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestClaim: a sandbox has one owner in its life, who finds nothing of what ran before; the claim sets how long the guest goes on
// alone.
func TestClaim(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	s, err := server.New(server.Config{Workdir: dir, OrphanTimeout: time.Hour, Orphaned: func() { close(ended) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	c := connect(t, s)
	before := wire.Spawn{Argv: []string{"/bin/true"}, Dir: dir}
	if _, err := c.Run(t.Context(), wire.RunRequest{ExecID: "before", YieldMillis: -1, Spawn: before}); err != nil {
		t.Fatal(err)
	}
	claim := func(owner string, orphan int64) wire.Code {
		t.Helper()
		err := c.Claim(t.Context(), wire.ClaimRequest{Owner: owner, OrphanMillis: orphan})
		var refused *wire.Error
		if err != nil && !errors.As(err, &refused) {
			t.Fatal(err)
		}
		if refused == nil {
			return ""
		}
		return refused.Code
	}
	for _, tc := range []struct {
		owner  string
		orphan int64
		want   wire.Code
	}{
		{"", 0, wire.CodeInvalid}, {string(make([]byte, wire.MaxOwner+1)), 0, wire.CodeInvalid}, {"a", -1, wire.CodeInvalid}, {"a", 1 << 62, wire.CodeInvalid},
		{"a", 0, ""}, {"b", 0, wire.CodeExists}, {"a", 100, ""},
	} {
		if got := claim(tc.owner, tc.orphan); got != tc.want {
			t.Errorf("claim by %.10q with %d: %q, want %q", tc.owner, tc.orphan, got, tc.want)
		}
	}
	if health, err := c.Health(t.Context()); err != nil || health.Claimed != "a" {
		t.Errorf("claimed by %q, %v", health.Claimed, err)
	}
	if execs, err := c.Execs(t.Context()); err != nil || len(execs) != 0 {
		t.Errorf("%v are left, %v", execs, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
}
