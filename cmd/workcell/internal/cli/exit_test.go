//go:build unix

package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestSecondSignalExitsAtOnce verifies that a second signal exits immediately. It records the exit instead of exiting.
func TestSecondSignalExitsAtOnce(t *testing.T) {
	exited := make(chan int, 1)
	ctx, stop := watchSignals(t.Context(), io.Discard, func(code int) { exited <- code })
	defer stop()
	raise := func() {
		checktest.Must(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	}
	raise()
	<-ctx.Done()
	var sig signalError
	if cause := context.Cause(ctx); !errors.As(cause, &sig) || sig.exitCode() != 143 {
		t.Errorf("cause = %v", cause)
	}
	select {
	case code := <-exited:
		t.Errorf("the first signal exited with %d", code)
	default:
	}
	raise()
	if code := <-exited; code != 143 {
		t.Errorf("exit code %d", code)
	}
}
