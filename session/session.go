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
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Session is a sandbox opened by a Manager for a key. It is safe for concurrent use. After Close, all calls return
// backend.ErrClosed; pending calls are canceled. After the sandbox died, all calls return backend.ErrLost.
type Session struct {
	*sandbox.Sandbox
	control sandbox.Control

	m         *Manager
	id        string
	key       Key
	req       Request // prepared; for sandboxes of other processes only the fields of shape
	engine    backend.Info
	made      string            // recorded request of the sandbox, Record.Request
	asIs      bool              // adopted with OpenAsIs, therefore req has only the known fields
	building  bool              // an environment is being installed; no caller receives the session
	reopening bool              // an opener closes it and opens the sandbox again; read it after closing is closed
	owned     bool              // this manager removes the sandbox; false for Connect
	joined    bool              // another process owns it, and it is open here (Options.Join)
	keepFresh bool              // from Connect; uses are recorded
	policy    record.IdlePolicy // action after the idle timeout; never empty if owned
	created   time.Time

	settled atomic.Bool // the store has it as ready
	taken   atomic.Bool // another process took over the sandbox

	mu       sync.Mutex    // guards the fields below; never held across a call to the engine or the guest
	recorded time.Time     // last use in the store
	idle     time.Duration // idle timeout; negative means none
	why      owner.Event   // reason for closing, Record.Reason; empty before

	lossRecorded chan struct{} // closed when the loss is in the store
	disowned     record.Record // record from giveUpLost; read it after lossRecorded is closed
	closing      chan struct{} // closed when Close has returned
	closeErr     error         // result of Close; set before closing is closed
}

// errSessionClosed is the error of calls on a closed session.
var errSessionClosed = sanitize.NewError("the sandbox is closed", backend.ErrClosed)

// Key returns the sandbox's key.
func (s *Session) Key() Key { return s.key }

// Info describes the sandbox. The result shares no memory with the session.
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

// Touch counts as a use and restarts the idle timeout. If the session is closing, Touch does nothing.
func (s *Session) Touch() { _ = s.control.Do(func() error { return nil }) }

// Close removes the sandbox and the workspace. Pending calls return backend.ErrClosed. For a session from Connect,
// Close only closes the connection. ctx does not limit the removal. Calling Close again has no effect.
func (s *Session) Close(ctx context.Context) error {
	return s.m.closeSession(ctx, s, owner.Gone, owner.Removed)
}

// Discard closes the sandbox as Close does. If the manager has a pool (Options.Pool), Discard does not wait for the
// removal. The manager removes the sandbox in the background, logs a failure, and lets the reaper try again.
// Manager.Close waits for the removal.
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

// isClosing reports whether the session is closing or closed.
func (s *Session) isClosing() bool { return s.control.Use().Closing }

// wasLost reports whether the sandbox was lost.
func (s *Session) wasLost() bool { return s.control.Use().Lost }

// noteLost logs and records the loss of the sandbox.
func (s *Session) noteLost(reason string) {
	defer close(s.lossRecorded)
	m := s.m
	m.log.Warn("sandbox lost", "sandbox", s.id, "key", s.key.String(), "engine_id", s.engine.ID, "reason", reason)
	if !s.owned || !s.settled.Load() {
		return
	}
	if m.keeper.TakenOver(s.id) {
		s.taken.Store(true)
		return
	}
	now := m.now()
	if to := s.on(owner.EngineLost); to != owner.Removing {
		m.giveUpLost(s, to, now)
		return
	}
	rec := s.recordAs(record.Removing, now)
	rec.Reason = string(owner.EngineLost)
	m.keeper.Save(rec)
}

// start starts the span of a call.
func (s *Session) start(ctx context.Context, name string) (context.Context, trace.Span) {
	attrs := append(s.m.keyAttributes(s.key),
		telemetry.KeySandboxID.String(s.id), telemetry.Text(telemetry.KeyImage, s.engine.Image))
	return telemetry.StartWith(ctx, s.m.tracers, name, attrs...)
}

// wrapError wraps a call's error.
func (s *Session) wrapError(op string, err error) error {
	return sandbox.WrapError(op, s.m.driver, s.id, err)
}

// on returns the next state of an open session's sandbox after an event.
func (s *Session) on(e owner.Event) owner.State {
	rule, _ := owner.On(owner.Facts{
		State: owner.Ready, Kind: custody.Kind(s.key.Scope()), Owned: true, StopIdle: s.policy == record.IdleStop,
		Retention: s.req.Retention, Keep: s.m.keeper.KeepsFiles(s.engine.Limits, s.engine.Workspace),
	}, e)
	return rule.To
}

// survives reports whether the sandbox's files are kept if the engine loses the sandbox.
func (s *Session) survives() bool { return s.on(owner.EngineLost) != owner.Removing }

// outlives reports whether lost files are kept beyond the idle timeout, because another process may open the key.
func (s *Session) outlives() bool { return custody.Kind(s.key.Scope())&(owner.Named|owner.Run) != 0 }
