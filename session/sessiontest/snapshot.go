package sessiontest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// RunSnapshots runs the snapshot tests for backends with snapshots. No other test may use m.
func RunSnapshots(t *testing.T, m *session.Manager, req session.Request) {
	t.Helper()
	req.Env = map[string]string{"GREETING": "hello"}
	made := 0
	req.Prepare = func(ctx context.Context, s *session.Session) error {
		made++
		_, err := s.WriteFile(ctx, "f", strings.NewReader("prepared\n"), sandbox.WriteFileOptions{})
		return err
	}
	key := session.WorkflowKey(session.NewRunID(), record.DefaultName)
	s, _, err := m.Open(t.Context(), key, req)
	must(t, err)
	Output(t, s, "echo one > f; mkdir d; echo x > d/x")
	if _, err := s.Snapshot(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	Output(t, s, "echo two > f; rm -r d; echo away > /tmp/kept")

	t.Run("rollback", func(t *testing.T) {
		// A running command is killed, and its caller gets the result.
		ended := make(chan sandbox.ExecResult, 1)
		go func() {
			res, _ := s.Exec(t.Context(), sandbox.ExecRequest{Command: "touch began; exec sleep 1000"})
			ended <- res
		}()
		Eventually(t, "the command", func() bool { _, err := s.StatFile(t.Context(), "began"); return err == nil })
		must(t, s.Rollback(t.Context(), "one"))
		if res := <-ended; res.Signal == "" {
			t.Errorf("the command: %+v", res.ExecStatus)
		}
		if got := Output(t, s, "cat f d/x /tmp/kept; ls"); got != "one\nx\naway\nd\nf\n" {
			t.Errorf("files: %q", got)
		}
		var buf bytes.Buffer
		if _, err := s.ReadFile(t.Context(), "f", &buf, sandbox.ReadFileOptions{}); err != nil || buf.String() != "one\n" {
			t.Errorf("ReadFile: %q, %v", buf.String(), err)
		}
	})
	t.Run("fork", func(t *testing.T) {
		Output(t, s, "echo origin > f")
		forks, err := s.Fork(t.Context(), "one", 3)
		must(t, err)
		for i, fork := range forks {
			if fork.Key() == key || fork.Key().Scope() != key.Scope() || fork.ID() == s.ID() {
				t.Errorf("fork %d is %s, %s", i, fork.Key(), fork.ID())
			}
			if got := Output(t, fork, "echo $GREETING; cat f; echo fork > f"); got != "hello\none\n" {
				t.Errorf("fork %d: %q", i, got)
			}
			if list, _, err := fork.Snapshots(t.Context()); err != nil || len(list) != 0 {
				t.Errorf("fork %d has %+v, %v", i, list, err)
			}
		}
		if made != 1 {
			t.Errorf("sandboxes were prepared %d times", made)
		}
		again, created, err := s.ForkAs(t.Context(), "one", forks[0].Key())
		if err != nil || created || again != forks[0] {
			t.Errorf("a fork again: %v, %v, %v", again, created, err)
		}
		if got := Output(t, s, "cat f"); got != "origin\n" {
			t.Errorf("the origin: %q", got)
		}
		must(t, s.AdoptFiles(t.Context(), forks[1], "adopted"))
		must(t, s.RemoveSnapshot(t.Context(), "adopted"))
		if got := Output(t, s, "cat f; ls"); got != "fork\nd\nf\n" {
			t.Errorf("with the files of a fork: %q", got)
		}
		for _, fork := range forks {
			must(t, fork.Close(t.Context()))
		}
	})
	if _, err := s.Fork(t.Context(), "none", 2); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("a fork of no snapshot: %v, want ErrNotFound", err)
	}
	if _, err := s.Fork(t.Context(), "one", session.MaxForks+1); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("too many forks: %v, want ErrInvalid", err)
	}
	must(t, s.RemoveSnapshot(t.Context(), "one"))
	if list, mechanism, err := s.Snapshots(t.Context()); err != nil || len(list) != 0 || mechanism == "" {
		t.Errorf("Snapshots: %+v, %v, %v", list, mechanism, err)
	}
	must(t, s.Close(t.Context()))
	if _, err := s.Snapshot(t.Context(), "late"); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("of a closed session: %v", err)
	}
}
