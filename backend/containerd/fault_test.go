//go:build linux

package containerd_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
)

// steps returns the API calls of a creation, in order.
func steps() []string {
	return []string{"Images/Get", "Containers/Create", "Snapshots/Prepare", "Tasks/Create", "Tasks/Start"}
}

// TestCreateFails verifies the cleanup if containerd disconnects at each step of a creation and comes back.
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
				backendtest.Fails(t, "Create", second(b.Create(t.Context(), spec)), backend.ErrUnavailable)
				must(t, b.Close()) // waits for the cleanup
				nothingLeft(t, spec.ID)
			})
		}
	}
}

// TestCreateFallsSilent verifies that Create returns soon if containerd hangs at any step, and that the created objects
// are removed when containerd responds again.
func TestCreateFallsSilent(t *testing.T) {
	t.Parallel()
	for _, step := range steps() {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			b := newBackend(t, func(o *containerd.Options) { o.Address, o.Patience = p.address, 5*time.Second })
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
			backendtest.Fails(t, "Create", second(b.Create(t.Context(), spec)), backend.ErrUnavailable)
			silent.Store(false)
			p.on(func(context.Context, string, bool) error { return nil })
			must(t, b.Close())
			nothingLeft(t, spec.ID)
		})
	}
}

// overdue is a context whose deadline has passed, but which is not yet done in this process.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// TestOverdue verifies the error if containerd, which knows the deadline, notices the end first.
func TestOverdue(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	backendtest.Fails(t, "ImageID", second(b.ImageID(overdue{t.Context()}, debianImage)), context.DeadlineExceeded)
}

// TestEngineFallsSilent verifies that a working driver handles a containerd that hangs and recovers.
func TestEngineFallsSilent(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *containerd.Options) { o.Address, o.Patience = p.address, 5*time.Second })
	info := backendtest.Create(t, newBackend(t, nil), newSpec())
	conn := backendtest.Dial(t, b, info.ID)
	p.on(silence(""))
	calls := backendtest.Calls(b, info.ID, newSpec)
	calls["ImageID"] = func(ctx context.Context) error { _, err := b.ImageID(ctx, debianImage); return err }
	before := runtime.NumGoroutine()
	for range 3 {
		var wg sync.WaitGroup
		for name, call := range calls {
			wg.Go(func() {
				backendtest.Fails(t, name, call(t.Context()), backend.ErrUnavailable)
			})
		}
		wg.Wait()
	}
	backendtest.Prints(t, conn, "echo still here", "still here\n")
	// Rollbacks of Create wait for containerd to recover. Other tests run concurrently.
	if after := runtime.NumGoroutine(); after > before+500 {
		t.Errorf("%d goroutines, %d before", after, before)
	}
	p.on(func(context.Context, string, bool) error { return nil })
	backendtest.Fails(t, "Get when it is back", second(b.Get(t.Context(), info.ID)), nil)
}
