package tools

import (
	"context"
	"testing"

	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/interpreter"
)

// TestProgramValueIsKept verifies that the value of a program can be read again after a failure.
func TestProgramValueIsKept(t *testing.T) {
	t.Parallel()
	engine, err := memory.New(nil)
	checktest.Must(t, err)
	m, err := session.NewManager(engine, nil)
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, m.Close(context.Background())) })
	s, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: "x"})
	checktest.Must(t, err)
	b := newBinding(newToolbox(&Plugin{Manager: m}), frontmatter.Sandbox{})
	b.programs["exe_a"] = program{ended: func() {}, req: interpreter.Request{Language: interpreter.Python}}
	for range 2 { // the driver refuses the path of the value
		res := sandbox.ExecResult{ExecStatus: sandbox.ExecStatus{ExecID: "exe_a", Status: sandbox.ExecCompleted}}
		if _, err := b.ended(t.Context(), s, res); err == nil {
			t.Error("the value was not read, but there is no error")
		}
	}
}

// TestTakeExecution verifies that a prompt run by a coding agent's host tool is not the coding agent's execution.
func TestTakeExecution(t *testing.T) {
	t.Parallel()
	x := &execution{agent: "outer"}
	got, ctx := takeExecution(context.WithValue(t.Context(), executionKey{}, x))
	if inner, _ := takeExecution(ctx); got != x || inner == x || inner.agent != "" {
		t.Errorf("%+v, then %+v", got, inner)
	}
}
