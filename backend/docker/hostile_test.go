package docker_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
)

// TestImageConfig has an image that asks for what only the engine's own description shows.
func TestImageConfig(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Image = imageStore(t).Put(t, backendtest.BuildImage(t, v1.Config{
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", "true"}, Interval: 1, Timeout: 1e9},
		StopSignal:  "SIGCONT",
		WorkingDir:  "/proc/self/fd/8",
		Volumes:     map[string]struct{}{"/data": {}, "/workspace": {}, "/tmp": {}},
	}, backendtest.Unique()))
	res, err := engineAPI(t).ContainerInspect(t.Context(), backendtest.Create(t, b, spec).ID)
	if err != nil {
		t.Fatal(err)
	}
	if res.State.Health != nil || res.Config.StopSignal != "SIGKILL" || res.Config.WorkingDir != "/" {
		t.Errorf("health %v, stop signal %s, directory %s", res.State.Health, res.Config.StopSignal, res.Config.WorkingDir)
	}
	for _, m := range res.Mounts {
		if m.Type == "volume" && !strings.HasPrefix(m.Name, "workcell-") && m.Destination != "/dev/pts" {
			t.Errorf("anonymous volume at %s", m.Destination)
		}
	}
}

// TestPaused: a sandbox that somebody paused is not lost.
func TestPaused(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	id := backendtest.Create(t, b, newSpec()).ID
	api := engineAPI(t)
	// The engine gives up after milliseconds when a process cannot be frozen in that moment, for one that waits for a disk.
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
	if err := api.ContainerUnpause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got := backendtest.Output(t, backendtest.Dial(t, b, id), "echo", "goes on"); got != "goes on\n" {
		t.Errorf("output %q", got)
	}
}
