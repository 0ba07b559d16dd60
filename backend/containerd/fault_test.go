package containerd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
)

// steps are the calls that make a sandbox, in their order.
func steps() []string {
	return []string{"Images/Get", "Containers/Create", "Snapshots/Prepare", "Tasks/Create", "Tasks/Start"}
}

// TestCreateCancelled ends the caller's context at every step, before containerd hears of it and when it has answered.
func TestCreateCancelled(t *testing.T) {
	t.Parallel()
	for _, step := range steps() {
		for name, late := range map[string]bool{"before": false, "after": true} {
			t.Run(step+" "+name, func(t *testing.T) {
				t.Parallel()
				p := newProxy(t)
				b := newBackend(t, func(o *containerd.Options) { o.Address = p.address })
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p.on(func(_ context.Context, method string, answered bool) error {
					if strings.HasSuffix(method, step) && answered == late {
						cancel()
					}
					return nil
				})
				spec := newSpec()
				spec.Network = backend.NetworkBridge
				info, err := b.Create(ctx, spec)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Create: %+v, %v, want context.Canceled", info, err)
				}
				nothingLeft(t, spec.ID)
			})
		}
	}
}

// TestCreateFails has containerd go away at every step and come back.
func TestCreateFails(t *testing.T) {
	t.Parallel()
	for _, step := range steps() {
		for name, late := range map[string]bool{"before": false, "after": true} {
			t.Run(step+" "+name, func(t *testing.T) {
				t.Parallel()
				p := newProxy(t)
				b := newBackend(t, func(o *containerd.Options) { o.Address = p.address })
				p.on(refuse(step, late))
				spec := newSpec()
				if info, err := b.Create(t.Context(), spec); !errors.Is(err, backend.ErrUnavailable) {
					t.Errorf("Create: %+v, %v, want ErrUnavailable", info, err)
				}
				if err := b.Close(); err != nil { // waits for the clean-up
					t.Error(err)
				}
				nothingLeft(t, spec.ID)
			})
		}
	}
}

// TestCreateFallsSilent has containerd hang at every step: Create ends soon, and what it made goes when containerd is back.
func TestCreateFallsSilent(t *testing.T) {
	t.Parallel()
	for _, step := range steps() {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			b := newBackend(t, func(o *containerd.Options) { o.Address, o.Patience = p.address, time.Second })
			var silent atomic.Bool
			p.on(func(ctx context.Context, method string, answered bool) error {
				if strings.HasSuffix(method, step) && !answered {
					silent.Store(true)
				}
				if silent.Load() {
					return silence("")(ctx, method, answered)
				}
				return nil
			})
			spec := newSpec()
			if info, err := b.Create(t.Context(), spec); !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("Create: %+v, %v, want ErrUnavailable", info, err)
			}
			silent.Store(false)
			p.on(func(context.Context, string, bool) error { return nil })
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			nothingLeft(t, spec.ID)
		})
	}
}

// overdue is a context whose deadline has passed and whose end this process has not seen yet.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// TestOverdue: containerd, which is told of the deadline, may see it pass first.
func TestOverdue(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	if _, err := b.HasImage(overdue{t.Context()}, debianImage); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("HasImage: %v, want context.DeadlineExceeded", err)
	}
}

func TestEngineDown(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.sock")
	b, err := containerd.New(t.Context(), &containerd.Options{Address: missing, StateDir: stateDir()})
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("New: %v, %v, want ErrUnavailable", b, err)
	}
	if strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "there is no such socket") {
		t.Errorf("error %v, it should tell that there is no socket, and not where", err)
	}
}

// everyCall makes each call once, on a sandbox that there is or was.
func everyCall(ctx context.Context, b *containerd.Backend, id string) map[string]error {
	second := func(_ any, err error) error { return err }
	calls := map[string]func() error{
		"Create":   func() error { return second(b.Create(ctx, newSpec())) },
		"Get":      func() error { return second(b.Get(ctx, id)) },
		"List":     func() error { return second(b.List(ctx, backend.Filter{})) },
		"Start":    func() error { return b.Start(ctx, id) },
		"Stop":     func() error { return b.Stop(ctx, id) },
		"Remove":   func() error { return b.Remove(ctx, id, backend.RemoveOptions{}) },
		"Dial":     func() error { return second(b.Dial(ctx, id)) },
		"Connect":  func() error { return second(b.Connect(ctx, id)) },
		"Ping":     func() error { return second(b.Ping(ctx)) },
		"OOMKills": func() error { return second(b.OOMKills(ctx, id)) },
		"HasImage": func() error { return second(b.HasImage(ctx, debianImage)) },
		"Import":   func() error { return second(b.ImportImage(ctx, strings.NewReader(""))) },
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]error{}
	for name, f := range calls {
		wg.Go(func() {
			err := f()
			mu.Lock()
			defer mu.Unlock()
			out[name] = err
		})
	}
	wg.Wait()
	return out
}

// TestEngineFallsSilent has containerd hang beneath a driver that works, and come back.
func TestEngineFallsSilent(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *containerd.Options) { o.Address, o.Patience = p.address, time.Second })
	info := create(t, newBackend(t, nil), newSpec())
	conn := dial(t, b, info.ID)
	p.on(silence(""))
	before := runtime.NumGoroutine()
	for range 3 {
		for name, err := range everyCall(t.Context(), b, info.ID) {
			if !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("%s: %v, want ErrUnavailable", name, err)
			}
		}
	}
	if got := sh(t, conn, "echo still here"); got != "still here\n" {
		t.Errorf("on the stream: %q", got)
	}
	// Rollbacks of Create wait for containerd to come back; other tests run beside this one.
	if after := runtime.NumGoroutine(); after > before+500 {
		t.Errorf("%d goroutines, %d before", after, before)
	}
	p.on(func(context.Context, string, bool) error { return nil })
	if _, err := b.Get(t.Context(), info.ID); err != nil {
		t.Errorf("Get when it is back: %v", err)
	}
}

// TestEngineRestarts has containerd's socket go and come back.
func TestEngineRestarts(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *containerd.Options) { o.Address = p.address })
	info := create(t, newBackend(t, nil), newSpec())
	conn := dial(t, b, info.ID)
	p.stop()
	for name, err := range everyCall(t.Context(), b, info.ID) {
		if !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
	if got := sh(t, conn, "echo still here"); got != "still here\n" {
		t.Errorf("on the stream: %q", got)
	}
	p.start(t)
	waitFor(t, "the driver to find containerd again", func() bool {
		_, err := b.Ping(t.Context())
		return err == nil
	})
	if s, err := b.Get(t.Context(), info.ID); err != nil || s.State != backend.StateRunning {
		t.Errorf("Get: %+v, %v", s, err)
	}
	if got := sh(t, dial(t, b, info.ID), "echo dialled again"); got != "dialled again\n" {
		t.Errorf("on a new stream: %q", got)
	}
}

// TestShimKilled ends the process between containerd and the sandbox.
func TestShimKilled(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	info := create(t, b, spec)
	conn := dial(t, b, info.ID)
	sh(t, conn, "echo kept > file")
	pids := shims(t, containerd.ContainerOf(info.ID))
	if len(pids) == 0 {
		t.Fatal("no shim")
	}
	for _, pid := range pids {
		shim, err := os.FindProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := shim.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	<-conn.Done()
	waitFor(t, "the sandbox to be told stopped", func() bool {
		s, err := b.Get(t.Context(), info.ID)
		return err == nil && s.State == backend.StateStopped
	})
	if s, err := b.Dial(t.Context(), info.ID); !errors.Is(err, backend.ErrLost) {
		t.Errorf("Dial: %v, %v, want ErrLost", s, err)
	}
	if err := b.Start(t.Context(), info.ID); err != nil {
		t.Fatalf("Start: %v", err)
	}
	if got := sh(t, dial(t, b, info.ID), "cat file"); got != "kept\n" {
		t.Errorf("after the start: %q", got)
	}
	remove(t, b, info.ID)
	nothingLeft(t, spec.ID)
}

// TestRuntimeFails has an OCI runtime that does not work.
func TestRuntimeFails(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho '{\"level\":\"error\",\"msg\":\"broken at '$PWD'\"}' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := newBackend(t, func(o *containerd.Options) { o.Runtimes = map[string]string{"broken": broken} })
	spec := newSpec()
	spec.Runtime = "broken"
	info, err := b.Create(t.Context(), spec)
	if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrNotFound) || strings.Contains(err.Error(), "/run/") {
		t.Errorf("Create: %+v, %v", info, err)
	}
	nothingLeft(t, spec.ID)
}

func TestClosed(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	info := create(t, newBackend(t, nil), newSpec())
	conn := dial(t, b, info.ID)
	for range 2 {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	for name, err := range everyCall(t.Context(), b, info.ID) {
		if !errors.Is(err, backend.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
	if got := sh(t, conn, "echo still here"); got != "still here\n" {
		t.Errorf("on the stream: %q", got)
	}
}

// TestCloseEndsCalls closes a driver that waits for containerd.
func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *containerd.Options) { o.Address, o.Patience = p.address, time.Hour })
	asked := make(chan struct{})
	p.on(func(ctx context.Context, method string, answered bool) error {
		if strings.HasSuffix(method, "Images/Get") {
			close(asked)
		}
		return silence("Images/Get")(ctx, method, answered)
	})
	done := make(chan error, 1)
	go func() {
		_, err := b.Create(t.Context(), newSpec())
		done <- err
	}()
	<-asked
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Create: %v, want ErrClosed", err)
	}
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
