//go:build linux

package session_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/workcell-dev/workcell/session"
)

func TestPrepareComesBeforeAnybodyGetsTheSandbox(t *testing.T) {
	t.Parallel()
	m := newManager(t, newEngine(t), nil)
	var prepared atomic.Int64
	req := testImage()
	req.Prepare = func(ctx context.Context, s *session.Session) error {
		prepared.Add(1)
		_, err := s.WriteFile(ctx, "ready.txt", strings.NewReader("ready"), session.WriteFileOptions{})
		return err
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			s, _, err := m.Open(t.Context(), session.WorkflowKey("run_1", "default"), req)
			if err != nil {
				t.Error(err)
				return
			}
			if data, _, err := s.ReadFileBytes(t.Context(), "ready.txt", session.ReadFileOptions{}); err != nil || string(data) != "ready" {
				t.Errorf("ready.txt: %q, %v", data, err)
			}
		})
	}
	wg.Wait()
	if n := prepared.Load(); n != 1 {
		t.Errorf("prepared %d times", n)
	}
}

func TestPrepareThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	broken := errors.New("no such directory")
	req := testImage()
	req.Prepare = func(context.Context, *session.Session) error { return broken }
	key := session.WorkflowKey("run_1", "default")
	if _, _, err := m.Open(t.Context(), key, req); !errors.Is(err, broken) {
		t.Errorf("error = %v, want %v", err, broken)
	}
	eventually(t, "the sandbox is removed", func() bool { return e.count() == 0 })
	mustOpen(t, m, key) // the key is free again
}
