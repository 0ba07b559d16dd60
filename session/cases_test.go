//go:build linux

package session_test

import (
	"testing"

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

// run executes and wants a result.
func run(t *testing.T, s *session.Session, req session.ExecRequest) session.ExecResult {
	t.Helper()
	res, err := s.Exec(t.Context(), req)
	if err != nil {
		t.Fatalf("Exec(%.100v): %v", req.Argv, err)
	}
	return res
}
