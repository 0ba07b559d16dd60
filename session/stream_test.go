//go:build linux

package session_test

import (
	"testing"

	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// TestStreamStarted verifies that a streamed command can be killed with the id that Stream reports, and that Stream
// returns the cause.
func TestStreamStarted(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, newManager(t, newEngine(t), nil), session.UserKey("stream"))
	var out buffertest.Buffer
	commands, ended := make(chan *sandbox.Command, 1), make(chan sandbox.ExecResult, 1)
	req := sandbox.ExecRequest{Command: "echo begun; sleep 1000", Started: func(c *sandbox.Command) { commands <- c }}
	go func() {
		res, err := s.Stream(t.Context(), req, sandbox.Streams{Stdout: &out})
		if err != nil {
			t.Error(err)
		}
		ended <- res
	}()
	command := <-commands
	eventually(t, "the command has begun", func() bool { return out.String() != "" })
	_, err := command.Signal(t.Context(), "")
	must(t, err)
	if res := <-ended; res.Status != sandbox.ExecKilled || res.ExecID != command.ID() {
		t.Errorf("%+v", res)
	}
}
