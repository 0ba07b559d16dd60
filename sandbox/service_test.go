package sandbox_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
)

// TestExtendedPatience verifies that a call that waits for a command waits longer if the command's timeout is extended.
func TestExtendedPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := sandbox.New(nil, sandbox.Options{Now: time.Now})
		ctx, release := s.Patient(t.Context(), "x", time.Minute)
		other, releaseOther := s.Patient(t.Context(), "y", time.Minute)
		time.Sleep(50 * time.Second)
		s.WaitLonger("x", time.Minute)
		s.WaitLonger("z", time.Minute)
		time.Sleep(69 * time.Second)
		if ctx.Err() != nil || !errors.Is(context.Cause(other), backend.ErrUnavailable) {
			t.Errorf("before the end: %v; not extended: %v", context.Cause(ctx), context.Cause(other))
		}
		time.Sleep(2 * time.Second)
		if !errors.Is(context.Cause(ctx), backend.ErrUnavailable) {
			t.Errorf("behind the end: %v", context.Cause(ctx))
		}
		release()
		releaseOther()
		s.WaitLonger("x", time.Minute)
	})
}
