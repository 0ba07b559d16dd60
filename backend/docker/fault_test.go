package docker_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
)

// prompt is the maximum time in which a caller must learn that the engine does not respond. The documented limit is 5
// seconds, but the host of the tests may be busy.
const prompt = 90 * time.Second

// TestEngineSilent verifies the error for an engine accepting connections but never responding.
func TestEngineSilent(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.on(func(*http.Request) bool { return false })
	begin := time.Now()
	_, err := docker.New(t.Context(), &docker.Options{Host: p.host, Patience: time.Second})
	backendtest.Fails(t, "New", err, backend.ErrUnavailable)
	if d := time.Since(begin); d > prompt {
		t.Errorf("it took %v", d)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := docker.New(ctx, &docker.Options{Host: p.host}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("New with a deadline: %v, want context.DeadlineExceeded", err)
	}
}

// TestEngineFallsSilent verifies the error of every method if the engine stops responding, and that the methods work
// again after the engine recovers.
func TestEngineFallsSilent(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *docker.Options) { o.Host, o.Patience = p.host, 5*time.Second })
	info := backendtest.Create(t, b, newSpec())
	var silent atomic.Bool
	p.on(func(*http.Request) bool { return !silent.Load() })
	silent.Store(true)
	t.Run("calls", func(t *testing.T) {
		for name, f := range backendtest.Calls(b, info.ID, newSpec) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				begin := time.Now()
				backendtest.Fails(t, name, f(t.Context()), backend.ErrUnavailable)
				if d := time.Since(begin); d > prompt {
					t.Errorf("it took %v", d)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				backendtest.Fails(t, "with a deadline", f(ctx), context.DeadlineExceeded)
			})
		}
	})
	silent.Store(false)
	if got, err := b.Get(t.Context(), info.ID); err != nil || got.State != backend.StateRunning {
		t.Errorf("after it came back: %v, %v", got.State, err)
	}
}

// TestEngineFallsSilentInCreate verifies the cleanup if the engine stops responding when a container starts, and
// recovers soon after.
func TestEngineFallsSilentInCreate(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *docker.Options) { o.Host, o.Patience = p.host, 5*time.Second })
	var silent atomic.Bool
	p.on(func(r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/start") {
			silent.Store(true)
		}
		return !silent.Load()
	})
	spec := newSpec()
	begin := time.Now()
	backendtest.Fails(t, "Create", second(b.Create(t.Context(), spec)), backend.ErrUnavailable)
	if d := time.Since(begin); d > prompt {
		t.Errorf("it took %v", d)
	}
	time.Sleep(100 * time.Millisecond) // the first request of the cleanup is also lost
	p.on(func(*http.Request) bool { return true })
	must(t, b.Close()) // waits for the cleanup
}

// TestEngineSlow verifies that a call may take longer than Patience if the engine responds to pings.
func TestEngineSlow(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *docker.Options) { o.Host, o.Patience = p.host, 5*time.Second })
	p.on(func(r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/start") {
			time.Sleep(8 * time.Second)
		}
		return true
	})
	backendtest.Create(t, b, newSpec())
}

// TestEngineUnknown verifies that no container is created before the engine reports limits and profiles.
func TestEngineUnknown(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *docker.Options) {
		o.Host, o.Patience, o.CallTimeout = p.host, 2*time.Second, 2*time.Second
	})
	var created atomic.Bool
	p.on(func(r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			created.Store(true)
		}
		return !strings.HasSuffix(r.URL.Path, "/info")
	})
	if c := b.Capabilities(); c.Memory || c.PIDs || !c.Persistent || !c.WritableRoot || len(c.Isolation) > 0 {
		t.Errorf("an unknown engine has the capabilities %+v", c)
	}
	if _, err := b.Create(t.Context(), newSpec()); !errors.Is(err, backend.ErrUnavailable) || created.Load() {
		t.Errorf("Create: %v, want ErrUnavailable; created: %t", err, created.Load())
	}
}

func TestCallTimeout(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *docker.Options) { o.Host, o.CallTimeout = p.host, 10*time.Second })
	p.on(func(r *http.Request) bool { return !strings.HasSuffix(r.URL.Path, "/containers/json") }) // pings succeed
	backendtest.Fails(t, "List", second(b.List(t.Context(), backend.Filter{})), backend.ErrUnavailable)
}
