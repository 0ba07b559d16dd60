//go:build linux

package server_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

var must = checktest.Must

// TestClaim verifies that a claim sets the orphan timeout and removes the finished commands from the registry.
func TestClaim(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	ended := make(chan struct{})
	s, err := server.New(server.Config{Workdir: dir, OrphanTimeout: time.Hour, Orphaned: func() { close(ended) }})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	c := connect(t, s)
	warm := wire.Spawn{Argv: []string{"/bin/true"}, Dir: dir}
	_, err = c.Run(t.Context(), wire.RunRequest{ExecID: "before", YieldMillis: -1, Spawn: warm})
	must(t, err)
	for _, millis := range []int64{-1, 1 << 62} {
		err := c.Claim(t.Context(), wire.ClaimRequest{OrphanMillis: millis})
		var refused *wire.Error
		if !errors.As(err, &refused) || refused.Code != wire.CodeInvalid {
			t.Errorf("orphan timeout of %d ms: %v", millis, err)
		}
	}
	must(t, c.Claim(t.Context(), wire.ClaimRequest{OrphanMillis: 100}))
	if execs, err := c.Execs(t.Context()); err != nil || len(execs) != 0 {
		t.Errorf("%v are left, %v", execs, err)
	}
	must(t, c.Close())
	<-ended
}
