//go:build linux

package session_test

import (
	"context"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sessiontest"
)

// TestExec runs on processes what the conformance suite runs on every engine.
func TestExec(t *testing.T) {
	t.Parallel()
	s, _, err := newManager(t, newEngine(t), nil).Open(t.Context(), session.WorkflowKey("run_1", "default"), sessiontest.ExecRequest("test:1"))
	must(t, err)
	sessiontest.Exec(t, s)
}

// TestFiles does so for files.
func TestFiles(t *testing.T) {
	t.Parallel()
	m := newManager(t, newEngine(t), &session.Options{MaxFileBytes: sessiontest.FileLimit})
	sessiontest.Files(t, mustOpen(t, m, session.WorkflowKey("run_1", "default")))
}

// TestLifecycle does so for the life of named sandboxes.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	sessiontest.Lifecycle(t, pickySharing{sharing{newEngine(t)}}, "shared", session.Request{Image: "test:1"}, "test:2")
}

// pickySharing is an engine that has only the images test:1 and test:2 and cannot change users.
type pickySharing struct{ sharing }

func (e pickySharing) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	if spec.Image != "test:1" && spec.Image != "test:2" {
		return backend.Info{}, backend.ErrImage
	}
	return e.sharing.Create(ctx, spec)
}

// run executes and wants a result.
func run(t *testing.T, s *session.Session, req session.ExecRequest) session.ExecResult {
	t.Helper()
	res, err := s.Exec(t.Context(), req)
	if err != nil {
		t.Fatalf("Exec(%.100v): %v", req.Argv, err)
	}
	return res
}
