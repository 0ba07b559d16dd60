//go:build linux

package containerd_test

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestOOM verifies the state after the kernel killed the main process because memory ran out. The sandbox's root user
// can make the kernel select this process.
func TestOOM(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.User, spec.Limits.MemoryBytes = "0:0", 64<<20
	info := backendtest.Create(t, b, spec)
	conn := backendtest.Dial(t, b, info.ID)
	hog := []string{"/bin/sh", "-c", "echo 1000 > /proc/1/oom_score_adj; echo 0 > /proc/self/oom_score_adj; tail /dev/zero"}
	for try := 0; try < 30 && conn.Err() == nil; try++ { // the kernel chooses which of the two it kills
		_, _ = conn.Run(t.Context(), wire.RunRequest{ // ends with the sandbox or with the memory hog
			Spawn:  wire.Spawn{Argv: hog, Env: []string{"PATH=/usr/bin:/bin"}},
			ExecID: rand.Text(), YieldMillis: -1,
		})
	}
	select {
	case <-conn.Done():
	case <-time.After(3 * time.Minute):
		t.Fatal("the main process outlives every hog")
	}
	backendtest.Eventually(t, "the sandbox's end", func() bool {
		s, err := b.Get(t.Context(), info.ID)
		return err == nil && s.State == backend.StateStopped
	})
	if s, err := b.Get(t.Context(), info.ID); err != nil || !s.OOMKilled {
		t.Errorf("Get: %+v, %v, want OOMKilled", s, err)
	}
	if list, err := b.List(t.Context(), backend.Filter{SessionID: spec.ID}); err != nil || len(list) != 1 || !list[0].OOMKilled {
		t.Errorf("List: %+v, %v, want OOMKilled", list, err)
	}
}
