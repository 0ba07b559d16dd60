package session

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Sweep implements admin.Sweep.
func (m operations) Sweep(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return sandbox.WrapError("Sweep", m.driver, "", m.trySweep(ctx))
}

// sweep sweeps for the manager's goroutine and logs a failure.
func (m *Manager) sweep(ctx context.Context) {
	if err := m.trySweep(ctx); err != nil && ctx.Err() == nil {
		m.log.WarnContext(ctx, "cannot find sandboxes left by other processes", "error", err)
	}
}

// trySweep sweeps and creates records for sandboxes without a record. It disables the drivers' traces, because no
// caller requested the sweep.
func (m *Manager) trySweep(caller context.Context) error {
	ctx, cancel := context.WithCancel(untraced(context.WithoutCancel(caller)))
	defer cancel()
	defer context.AfterFunc(caller, func() { time.AfterFunc(custody.Lifetimes.SweepGrace, cancel) })()
	plan, err := m.keeper.Plan(ctx, func(id string) bool { return m.own(id) != nil })
	if err != nil {
		return err
	}
	for _, rec := range plan.Unrecorded {
		err := m.store.Insert(ctx, rec)
		if errors.Is(err, backend.ErrExists) { // the key has another sandbox, or a record exists by now
			rec.State, rec.Expires = record.Removing, m.now().Add(custody.Lifetimes.Unrecorded)
			err = m.store.Insert(ctx, rec)
		}
		if err != nil && !errors.Is(err, backend.ErrExists) {
			m.log.WarnContext(ctx, "cannot record a sandbox that has no record", "sandbox", rec.ID, "error", err)
		}
	}
	for _, engine := range plan.Strays {
		stray := record.Record{ID: engine.SessionID}
		if m.useByGuest(ctx, stray, func(h sandbox.Health) bool { return h.Hosts > 1 || h.Running > 0 }) != unused {
			continue // the manager of a pooled sandbox is connected
		}
		m.log.InfoContext(ctx, "removing a sandbox without a record",
			"sandbox", engine.SessionID, "engine_id", engine.ID)
		if err := m.keeper.RemoveEngine(ctx, engine.ID, true); err != nil {
			m.log.WarnContext(ctx, "cannot remove a sandbox without a record", "engine_id", engine.ID, "error", err)
		}
	}
	for _, rec := range plan.Reclaim {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := m.reclaim(ctx, rec.Record, rec.Rule); err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "cannot remove an unused sandbox", "sandbox", rec.ID, "error", err)
		}
	}
	m.freePlaces(ctx)
	return nil
}

// untraced returns a context in which drivers create no traces.
func untraced(ctx context.Context) context.Context {
	parent := trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}} // not sampled
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(parent))
}

// reclaim takes an ownerless record and applies a rule, unless the sandbox turns out to be in use.
func (m *Manager) reclaim(ctx context.Context, rec record.Record, rule owner.Rule) error {
	taken, err := m.keeper.Take(ctx, rec)
	if custody.IsOvertaken(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.keeper.Done(rec.ID)
	use := unused
	switch {
	case taken.State != rec.State:
		taken.Owner = rec.Owner // a later sweep decides
		m.keeper.Save(taken)
		return nil
	case rule.While == owner.NotBusy:
		use = m.useOf(ctx, taken)
	case rule.While == owner.NotConnected:
		use = m.connectedTo(ctx, taken)
	}
	switch now, err := m.store.Get(ctx, rec.ID); {
	case err != nil: // another process may have used or taken it
		taken.Owner = rec.Owner
		m.keeper.Save(taken)
		return err
	case !now.Expires.Equal(taken.Expires): // it was just used
		taken, use = now, used
	}
	if use == silent && m.now().After(taken.LastUsed.Add(taken.Idle+custody.Lifetimes.Silent)) {
		use = unused
	}
	if use != unused || ctx.Err() != nil {
		m.putBack(ctx, taken, use)
		return nil
	}
	if taken.State.Live() || taken.Reason == "" { // else only the removal is late
		taken.Reason = string(rule.On)
	}
	if rule.Do == owner.Stop {
		engine, _, err := m.keeper.Find(ctx, taken.ID)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			taken.Owner = ""
			m.keeper.Save(taken)
			return err
		}
		return m.keeper.Suspend(ctx, taken, engine.ID) // without a container, the workspace may still exist
	}
	m.log.InfoContext(ctx, "removing a sandbox without an owner, and its processes",
		"sandbox", rec.ID, "key", rec.Key.String(), "state", string(rec.State), "reason", taken.Reason)
	if err := m.keeper.Delete(ctx, taken); err != nil {
		return err
	}
	m.countRemoved(ctx, telemetry.RemovedOrphan)
	return nil
}

// putBack gives up a record taken by reclaim.
func (m *Manager) putBack(ctx context.Context, rec record.Record, use use) {
	rec.Owner = m.keeper.NoOwner()
	if now := m.now(); rec.Expired(now) && ctx.Err() == nil {
		rec.Expires = now.Add(rec.Idle)
		if use == used {
			rec.LastUsed = now
		}
	}
	m.keeper.Save(rec)
}

// use is whether a sandbox is known to be used.
type use int

const (
	unused use = iota
	used
	silent // it exists, but neither it nor the engine answers
)

// useOf returns whether an expired sandbox was used since, or whether a process runs in it.
func (m *Manager) useOf(ctx context.Context, rec record.Record) use {
	if _, _, err := m.keeper.Find(ctx, rec.ID); err == nil && !rec.Expired(m.now()) {
		return used
	}
	return m.useByGuest(ctx, rec, func(h sandbox.Health) bool { return h.Running > 0 })
}

// connectedTo returns whether a process is connected to a sandbox without an owner.
func (m *Manager) connectedTo(ctx context.Context, rec record.Record) use {
	return m.useByGuest(ctx, rec, func(h sandbox.Health) bool { return h.Hosts > 1 }) // this process is one of them
}

// useByGuest queries the guest of a sandbox and returns whether uses reports true.
func (m *Manager) useByGuest(ctx context.Context, rec record.Record, uses func(sandbox.Health) bool) use {
	engine, _, err := m.keeper.Find(ctx, rec.ID)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return unused
	case err != nil, engine.State == backend.StatePaused:
		return silent
	case engine.State != backend.StateRunning:
		return unused
	}
	health, err := sandbox.CheckHealth(ctx, m.b, engine.ID)
	switch {
	case errors.Is(err, backend.ErrNotFound), errors.Is(err, backend.ErrLost):
		return unused // it has just exited
	case err != nil:
		return silent
	case uses(health):
		return used
	}
	return unused
}

// A killed manager, or a manager whose host lost power, cleans up nothing. Therefore every guest agent exits if it has
// had no connection for long enough. The instance's sweep removes exited sandboxes. If the instance belonged to one
// manager only, any manager's sweep removes them.

// orphanTimeout returns how long a sandbox keeps running without a connection. Zero means forever.
func (s *Session) orphanTimeout() time.Duration {
	if s.idle < 0 {
		return 0
	}
	return max(s.idle, s.req.Retention, custody.SecondaryIdle(s.idle)) + custody.Lifetimes.OrphanMargin
}
