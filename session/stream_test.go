//go:build linux

package session_test

import (
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// TestStreamStarted verifies that a streamed command can be killed with the id that Stream reports, and that Stream
// returns the cause.
func TestStreamStarted(t *testing.T) {
	t.Parallel()
	m := newManager(t, newEngine(t), nil)
	s := openAs(t, m, session.UserKey("stream"), session.Request{Image: "x"})
	var command *sandbox.Command
	begun := make(chan struct{})
	output := onFirst{do: func() { close(begun) }}
	killed := make(chan error, 1)
	go func() {
		<-begun
		_, err := command.Signal(t.Context(), "")
		killed <- err
	}()
	req := sandbox.ExecRequest{Command: "echo begun; sleep 1000", Started: func(c *sandbox.Command) { command = c }}
	res, err := s.Stream(t.Context(), req, sandbox.Streams{Stdout: &output})
	if err != nil || res.Status != sandbox.ExecKilled || res.ExecID != command.ID() {
		t.Errorf("%+v, %v", res, err)
	}
	must(t, <-killed)
}

// onFirst calls do on the first write.
type onFirst struct {
	once sync.Once
	do   func()
}

func (o *onFirst) Write(p []byte) (int, error) {
	o.once.Do(o.do)
	return len(p), nil
}
