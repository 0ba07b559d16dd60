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

// Sweep is admin.Sweep.
func (m operations) Sweep(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return sandbox.WrapError("Sweep", m.driver, "", m.trySweep(ctx))
}

// sweep is Sweep for the manager's goroutine.
func (m *Manager) sweep(ctx context.Context) {
	if err := m.trySweep(ctx); err != nil && ctx.Err() == nil {
		m.log.WarnContext(ctx, "cannot find sandboxes left by other processes", "error", err)
	}
}

// trySweep sweeps, and makes records of sandboxes that have none.
func (m *Manager) trySweep(ctx context.Context) error {
	ctx, cancel := m.sweepContext(ctx)
	defer cancel()
	plan, err := m.keeper.Plan(ctx, func(id string) bool { return has(m, m.byID, id) })
	if err != nil {
		return err
	}
	for _, rec := range plan.Unrecorded {
		err := m.store.Insert(ctx, rec)
		if errors.Is(err, backend.ErrExists) { // its key has another sandbox, or it has a record by now
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

// sweepContext returns the context of a sweep. It keeps drivers from making traces of what nobody asked for.
func (m *Manager) sweepContext(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(untraced(context.WithoutCancel(ctx)))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(custody.Lifetimes.SweepGrace, cancel)
		context.AfterFunc(late, func() { timer.Stop() })
	})
	return late, func() {
		stop()
		cancel()
	}
}

// untraced returns a context in which drivers make no traces.
func untraced(ctx context.Context) context.Context {
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})) // not sampled
}

// reclaim takes a record that nobody has and applies a rule, unless its sandbox turns out to be used.
func (m *Manager) reclaim(ctx context.Context, rec record.Record, rule owner.Rule) error {
	taken, err := m.store.Take(ctx, rec.ID, rec.Owner, m.owner)
	if custody.IsOvertaken(err) {
		return nil
	}
	if err != nil {
		return err
	}
	use := unused
	switch {
	case taken.State != rec.State:
		taken.Owner = rec.Owner // a later sweep's
		m.keeper.Save(taken)
		return nil
	case rule.While == owner.NotBusy:
		use = m.useOf(ctx, taken)
	case rule.While == owner.NotConnected:
		use = m.connectedTo(ctx, taken)
	}
	switch now, err := m.store.Get(ctx, rec.ID); {
	case err != nil: // so it may have been used, or be another's by now
		taken.Owner = rec.Owner
		m.keeper.Save(taken)
		return err
	case !now.Expires.Equal(taken.Expires): // used just now
		taken, use = now, used
	}
	if use == silent && m.now().After(taken.LastUsed.Add(taken.Idle+custody.Lifetimes.Silent)) {
		use = unused
	}
	if use != unused || ctx.Err() != nil {
		m.putBack(ctx, taken, use)
		return nil
	}
	if decided := taken.State == record.Removing || taken.State == record.Closed; !decided || taken.Reason == "" { // else this is late only
		taken.Reason = string(rule.On)
	}
	if rule.Do == owner.Stop {
		engine, _, err := m.keeper.Find(ctx, taken.ID)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			taken.Owner = ""
			m.keeper.Save(taken)
			return err
		}
		return m.keeper.Suspend(ctx, taken, engine.ID) // where the engine has none, its workspace may be there
	}
	m.log.InfoContext(ctx, "removing a sandbox without an owner, and its processes",
		"sandbox", rec.ID, "key", rec.Key.String(), "state", string(rec.State), "reason", taken.Reason)
	if err := m.keeper.Delete(ctx, taken); err != nil {
		return err
	}
	m.countRemoved(ctx, telemetry.RemovedOrphan)
	return nil
}

// putBack gives up a record that was taken to be reclaimed.
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

// use is what is known of the use of a sandbox.
type use int

const (
	unused use = iota
	used
	silent // it is there, and neither it nor the engine answers
)

// useOf returns whether a sandbox that is due was used since, or something runs in it.
func (m *Manager) useOf(ctx context.Context, rec record.Record) use {
	if _, _, err := m.keeper.Find(ctx, rec.ID); err == nil && !rec.Expired(m.now()) {
		return used
	}
	return m.useByGuest(ctx, rec, func(h sandbox.Health) bool { return h.Running > 0 })
}

// connectedTo returns whether a process is connected to a sandbox without an owner.
func (m *Manager) connectedTo(ctx context.Context, rec record.Record) use {
	return m.useByGuest(ctx, rec, func(h sandbox.Health) bool { return h.Hosts > 1 }) // one of them asks
}

// useByGuest asks the guest of a sandbox whether that is used.
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
		return unused // it ended just now
	case err != nil:
		return silent
	case uses(health):
		return used
	}
	return unused
}

// A manager that was killed, or whose machine lost its power, cleans nothing up. So every guest ends itself when it was
// alone for long enough, and what has ended is removed by the sweep of the instance, or of anybody where the instance
// was this manager's alone.

// orphanTimeout returns how long the guest of a session's sandbox goes on alone; zero is for ever.
func (s *Session) orphanTimeout() time.Duration {
	if s.idle < 0 {
		return 0
	}
	return max(s.idle, s.req.Retention, custody.SecondaryIdle(record.Record{Idle: s.idle})) + custody.Lifetimes.OrphanMargin
}
