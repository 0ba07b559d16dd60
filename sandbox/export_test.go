package sandbox

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Internals that tests use.
var (
	BaseEnv       = baseEnv
	ExecEnv       = execEnv
	CleanHello    = cleanHello
	CleanSignal   = cleanSignal
	AnswerOfGuest = func(e *wire.Error) error { return WrapError("Exec", "test", "sbx_x", e) }
)

// Patient returns a context for a call that waits for a command. WaitLonger extends its deadline.
func (s *Sandbox) Patient(ctx context.Context, execID string, limit time.Duration) (context.Context, func()) {
	return s.patient(ctx, execID, limit)
}

// WaitLonger does what Command.Extend does to the calls of this process.
func (s *Sandbox) WaitLonger(execID string, by time.Duration) { s.waitLonger(execID, by) }

// Canonical returns the settings as canonical JSON.
func (s Settings) Canonical() []byte { return s.canonical() }
