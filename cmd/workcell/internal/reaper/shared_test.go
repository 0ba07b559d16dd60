//go:build !no_postgres

package reaper

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/postgres"
)

// TestUnreachableDatabase verifies that a reaper waits for a database that it cannot reach.
func TestUnreachableDatabase(t *testing.T) {
	t.Parallel()
	naps := 0
	r := &Reaper{State: state.Place{URL: "postgres://127.0.0.1:1/x"}, pause: func(context.Context, time.Duration) bool {
		naps++
		return naps < 3
	}}
	if err := r.Run(t.Context(), deadOwner); naps != 3 || !errors.Is(err, postgres.ErrUnreachable) {
		t.Errorf("%d naps, %v", naps, err)
	}
}
