package backendtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/backend"
)

func manyChecks() []check {
	return []check{
		{"creates", (*suite).manyCreates},
		{"one session", (*suite).sameSession},
		{"strangers", (*suite).foreign},
		{"ids", (*suite).ids},
	}
}

// manyCreates verifies concurrent creations and removals.
func (s *suite) manyCreates(t *testing.T) {
	const n = 12
	first := s.lone(t)
	infos := make([]backend.Info, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			spec := s.spec()
			spec.Run, spec.Instance = first.Run, first.Instance
			info, err := s.b.Create(t.Context(), spec)
			if err != nil {
				t.Errorf("Create: %v", err)
				return
			}
			infos[i] = info
		})
	}
	wg.Wait()
	list, err := s.b.List(t.Context(), backend.Filter{Run: first.Run})
	if err != nil || len(list) != n {
		t.Errorf("List: %d, %v, want %d", len(list), err, n)
	}
	if !slices.IsSortedFunc(list, func(a, b backend.Info) int { return a.Created.Compare(b.Created) }) {
		t.Error("List is not sorted by creation")
	}
	for _, info := range infos {
		for range 2 { // twice, concurrently
			wg.Go(func() {
				if info.ID != "" {
					Remove(t, s.b, info.ID)
				}
			})
		}
	}
	wg.Wait()
	s.nothingLeft(t, first.Instance)
}

// sameSession verifies concurrent creations of one session. One creation succeeds, and its workspace is kept.
func (s *suite) sameSession(t *testing.T) {
	spec := s.lone(t)
	var mu sync.Mutex
	var won []backend.Info
	var wg sync.WaitGroup
	for _, b := range []backend.SandboxBackend{s.b, s.b, s.backend(t), s.backend(t)} {
		wg.Go(func() {
			info, err := b.Create(t.Context(), spec)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, info)
			case !errors.Is(err, backend.ErrExists):
				t.Errorf("Create: %v, want ErrExists", err)
			}
		})
	}
	wg.Wait()
	for _, info := range won {
		defer Remove(t, s.b, info.ID)
	}
	if len(won) != 1 {
		t.Fatalf("%d won", len(won))
	}
	Prints(t, s.dial(t, won[0].ID), "touch /workspace/x && stat -c %u /workspace", "1000\n")
}

// foreign verifies that the driver never touches foreign objects on the engine, even if they look like sandboxes.
func (s *suite) foreign(t *testing.T) {
	run := "run_" + freshInstance()
	lookAlike := map[string]string{
		backend.LabelRole: backend.RoleSandbox, backend.LabelID: "sbx_" + freshInstance(), backend.LabelRun: run,
	}
	for what, labels := range map[string]map[string]string{"plain": nil, "look-alike": lookAlike} {
		names := s.h.Foreign(t, labels)
		before, err := s.h.Describe(t.Context(), names[0])
		must(t, err)
		for _, name := range names {
			s.gone(t, name)
			Fails(t, "Remove of "+what, s.b.Remove(t.Context(), name, backend.RemoveOptions{Volumes: true}), nil)
		}
		if after, err := s.h.Describe(t.Context(), names[0]); err != nil || after != before {
			t.Errorf("%s was touched: %v\n%s\n%s", what, err, before, after)
		}
	}
	if list, err := s.b.List(t.Context(), backend.Filter{Run: run}); err != nil || len(list) != 0 {
		t.Errorf("List: %v, %v, want nothing", list, err)
	}
}

// ids verifies IDs similar to a sandbox's ID.
func (s *suite) ids(t *testing.T) {
	info, _ := s.inDebian(t)
	id := info.ID
	for _, name := range []string{
		"", id[:len(id)/2], id[:len(id)-1], id + "0", info.SessionID, "workcell-" + info.SessionID, strings.ToUpper(id), id + "\n", " " + id,
		"../" + id, id + "/", "./" + id, "/" + id, id + "/..", "..", "/", "*", "-", id + "\x00", strings.Repeat("a", 64), strings.Repeat("x", 10_000),
	} {
		if name == id { // the ID has no letters
			continue
		}
		s.gone(t, name)
		what := fmt.Sprintf("Remove of %.80q", name)
		Fails(t, what, s.b.Remove(t.Context(), name, backend.RemoveOptions{Volumes: true}), nil)
	}
	s.inState(t, id, backend.StateRunning)
}
