package sessiontest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

// Pool verifies that pooled sandboxes become sessions without calls to the engine, and that none is left at the end.
// req must be for a sandbox with a shell.
func Pool(t *testing.T, b backend.SandboxBackend, instance string, req session.Request) {
	const size = 3
	store := record.NewMemoryStore()
	m, err := session.NewManager(b, &session.Options{
		Instance: instance, Store: store, Pool: []session.PoolSpec{{Request: req, Size: size}},
	})
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	ready := FullPool(t, m, size)
	ids, wg := make([]string, size), sync.WaitGroup{}
	for i := range size {
		wg.Go(func() {
			s, created, err := m.Open(t.Context(), record.AgentKey(fmt.Sprintf("run_%d", i), record.DefaultName), req)
			if err != nil || !created {
				t.Errorf("Open: %v, %v", created, err)
				return
			}
			ids[i] = s.ID()
			// As in a new sandbox, the workspace is empty, and commands can write to it.
			if got := Output(t, s, "ls -A -I .workcell; echo own > file; cat file"); got != "own\n" {
				t.Errorf("%s: output %q", s.ID(), got)
			}
			if execs, err := s.Commands(t.Context()); err != nil || len(execs) != 1 {
				t.Errorf("commands %+v, %v, want the one", execs, err)
			}
		})
	}
	wg.Wait()
	slices.Sort(ids)
	slices.Sort(ready)
	if !slices.Equal(ids, ready) {
		t.Errorf("opened %v, ready were %v", ids, ready)
	}
	next := FullPool(t, m, size)
	for _, id := range next {
		if slices.Contains(ids, id) {
			t.Errorf("%s is ready again", id)
		}
	}
	other, err := session.NewManager(b, &session.Options{Instance: instance, Store: store})
	must(t, err)
	t.Cleanup(func() { must(t, other.Close(context.Background())) })
	must(t, admin.Sweep(t.Context(), other))
	beside, err := other.Connect(t.Context(), ids[0])
	must(t, err)
	Output(t, beside, "cat file")
	_, err = other.Connect(t.Context(), next[0])
	if !errors.Is(err, backend.ErrNotFound) || beside.Key().Namespace != record.NamespaceAgent {
		t.Errorf("Connect to a pooled sandbox: %v; key of a used sandbox: %s", err, beside.Key())
	}
	must(t, m.Remove(t.Context(), next[0], true)) // as another process might
	s, _, err := m.Open(t.Context(), session.UserKey("pool"), req)
	must(t, err)
	Output(t, s, "true")
}

// FullPool waits until n sandboxes are in the pool and returns their ids.
func FullPool(t testing.TB, m *session.Manager, n int) (ids []string) {
	t.Helper()
	Eventually(t, "the pool is full", func() bool {
		list, err := m.List(t.Context())
		must(t, err)
		ids = nil
		for _, info := range list {
			if info.State == session.StatePooled {
				ids = append(ids, info.ID)
			}
		}
		return len(ids) == n
	})
	return ids
}
