package docker_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
)

// TestPaused verifies that a sandbox paused by another program is not reported as lost.
func TestPaused(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	id := backendtest.Create(t, b, newSpec()).ID
	api := engineAPI(t)
	// The engine gives up after milliseconds if a process cannot be frozen at that moment, for example because it waits
	// for a disk.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := api.ContainerPause(t.Context(), id)
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "unable to freeze") || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if stream, err := b.Dial(t.Context(), id); !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrLost) {
		t.Errorf("Dial = %v, %v, want ErrUnavailable", stream, err)
	}
	must(t, api.ContainerUnpause(t.Context(), id))
	if got := backendtest.Output(t, backendtest.Dial(t, b, id), "echo", "goes on"); got != "goes on\n" {
		t.Errorf("output %q", got)
	}
}
