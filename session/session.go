package session

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Session is a sandbox that a Manager opened for a key. All methods may be called concurrently. After Close every
// call fails with backend.ErrClosed, calls under way too; once the sandbox died every call fails with
// backend.ErrLost.
type Session struct {
	*sandbox.Sandbox
	control sandbox.Control

	m         *Manager
	id        string
	key       Key
	req       Request // prepared; only its shape for sandboxes of other processes
	engine    backend.Info
	made      string            // what the sandbox was made for, Record.Request
	asIs      bool              // adopted with OpenAsIs, so that req has only what could be found out
	building  bool              // an environment is installed in it, and nobody gets it
	owned     bool              // this manager removes the sandbox; false for Connect
	joined    bool              // it is another process's and open here all the same (Options.Join)
	keepFresh bool              // from Connect, with uses that are recorded
	policy    record.IdlePolicy // what becomes of it when it is idle; never empty for an owned one
	created   time.Time

	settled atomic.Bool // the store has it as ready

	mu       sync.Mutex    // guards the fields below; never held across a call to the engine or the guest
	recorded time.Time     // last use as it was last recorded
	idle     time.Duration // negative is never
	taken    bool          // another process has the sandbox now
	why      owner.Event   // for which it closes, Record.Reason; empty before

	lossRecorded chan struct{} // closed when the store has the loss
	disowned     record.Record // as given up by giveUpLost; to be read when lossRecorded is closed
	expired      bool          // it closes because nobody used it; set when Close begins
	closing      chan struct{} // closed when Close ended
	closeErr     error         // result of Close, set before closing is closed
}

// errSessionClosed is the answer of a session that was closed.
var errSessionClosed error = &sanitize.Error{Text: "the sandbox is closed", Err: backend.ErrClosed}

// Key returns the key that the sandbox belongs to.
func (s *Session) Key() Key { return s.key }

// Info describes the sandbox. The result shares nothing with the session.
func (s *Session) Info() Info {
	info := s.m.describe(s.engine, s.key)
	info.Workdir, info.Programs = s.Workdir(), s.Programs()
	info.Labels = maps.Clone(info.Labels)
	info.IdlePolicy = s.policy
	made, _ := decodeShape(s.made) // of a sandbox without a record nothing is known
	info.Egress, info.Environment, info.OCIRuntime = made.Egress, made.Environment, made.OCIRuntime
	use := s.control.Use()
	switch info.State = StateReady; {
	case use.Closing:
		info.State = StateClosed
	case use.Lost:
		info.State = StateLost
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	info.LastUsed, info.IdleTimeout, info.ExecTimeout = use.Last, s.idle, use.Timeout
	return info
}

// Touch counts as use: the session's idle time starts again. It does nothing to a session that is closing.
func (s *Session) Touch() { _ = s.control.Do(func() error { return nil }) }

// Close closes the sandbox: calls under way end with backend.ErrClosed and the sandbox is removed with its workspace.
// For a session from Connect it only ends the connection. Closing twice is no error; ctx does not shorten the removal.
func (s *Session) Close(ctx context.Context) error {
	return s.m.closeSession(ctx, s, owner.Gone, owner.Removed)
}

// Discard closes the sandbox as Close does. Where sandboxes are kept ready (Options.Pool), which is where it matters,
// it does not wait for the removal, which the manager does, Close of it included; a failure is logged then, and the
// reaper tries again.
func (s *Session) Discard(ctx context.Context) error {
	if s.m.pool == nil || !s.owned {
		return s.Close(ctx)
	}
	if s.control.BeginClose(always) {
		s.m.spawn(func() {
			if err := s.m.finishClose(ctx, s, owner.Gone, owner.Removed); err != nil {
				s.m.log.WarnContext(ctx, "cannot remove a sandbox yet", "sandbox", s.id, "error", err)
			}
		})
	}
	return nil
}

// Conditions of Control.BeginClose.
func always(sandbox.Use) bool       { return true }
func uncalled(use sandbox.Use) bool { return use.Calls == 0 }

// isClosing reports whether the session closes or is closed.
func (s *Session) isClosing() bool { return s.control.Use().Closing }

// wasLost reports whether the session was lost before it was closed, or is.
func (s *Session) wasLost() bool { return s.control.Use().Lost }

// noteLost records that the sandbox was lost.
func (s *Session) noteLost(reason string) {
	defer close(s.lossRecorded)
	s.m.noteLost(s, reason)
}

// start begins the span of a call.
func (s *Session) start(ctx context.Context, name string) (context.Context, trace.Span) {
	attrs := append(s.m.keyAttributes(s.key),
		telemetry.KeySandboxID.String(s.id), telemetry.Text(telemetry.KeyImage, s.engine.Image))
	return telemetry.StartWith(ctx, s.m.tracers, name, attrs...)
}

// wrapError wraps the error of a call.
func (s *Session) wrapError(op string, err error) error {
	return sandbox.WrapError(op, s.m.driver, s.id, err)
}
