package sandbox

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Internals that tests look at.
var (
	BaseEnv       = baseEnv
	ExecEnv       = execEnv
	CleanHello    = cleanHello
	CleanSignal   = cleanSignal
	AnswerOfGuest = func(e *wire.Error) error { return WrapError("Exec", "test", "sbx_x", e) }
)

// Patient returns a context that bounds a call which waits for a command, and WaitLonger moves its end.
func (s *Sandbox) Patient(ctx context.Context, execID string, limit time.Duration) (context.Context, func()) {
	return s.patient(ctx, execID, limit)
}

// WaitLonger is what Command.Extend does to the calls of this process.
func (s *Sandbox) WaitLonger(execID string, by time.Duration) { s.waitLonger(execID, by) }
