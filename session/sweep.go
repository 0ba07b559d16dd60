package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Sweep is admin.Sweep.
func (m operations) Sweep(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return wrapError("Sweep", m.driver, "", m.trySweep(ctx))
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
	plan, err := m.plan(ctx)
	if err != nil {
		return err
	}
	for _, rec := range plan.unrecorded {
		err := m.store.Insert(ctx, rec)
		if errors.Is(err, backend.ErrExists) { // its key has another sandbox, or it has a record by now
			rec.State, rec.Expires = record.Removing, m.now().Add(lifetimes.Unrecorded)
			err = m.store.Insert(ctx, rec)
		}
		if err != nil && !errors.Is(err, backend.ErrExists) {
			m.log.WarnContext(ctx, "cannot record a sandbox that has no record", "sandbox", rec.ID, "error", err)
		}
	}
	for _, engine := range plan.strays {
		m.log.InfoContext(ctx, "removing a sandbox without a record",
			"sandbox", engine.SessionID, "engine_id", engine.ID)
		if err := m.removeEngine(ctx, engine.ID, true); err != nil {
			m.log.WarnContext(ctx, "cannot remove a sandbox without a record", "engine_id", engine.ID, "error", err)
		}
	}
	for _, rec := range plan.reclaim {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := m.reclaim(ctx, rec.Record, rec.rule); err != nil && ctx.Err() == nil {
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
		timer := time.AfterFunc(lifetimes.SweepGrace, cancel)
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

// sweepPlan is what a look at engine and store found to be done.
type sweepPlan struct {
	unrecorded []record.Record // of sandboxes that the store does not know
	strays     []backend.Info  // old sandboxes without a record: labels may be forged, or the only owner is gone
	reclaim    []reclaimable   // sandboxes without an owner
}

// reclaimable is a record that belongs to nobody, and what time has brought about for its sandbox.
type reclaimable struct {
	record.Record
	rule owner.Rule
}

// plan looks for what is to be done.
func (m *Manager) plan(ctx context.Context) (sweepPlan, error) {
	var plan sweepPlan
	// The engine first: a sandbox that is made meanwhile has its record before the store is read.
	found, err := m.b.List(ctx, backend.Filter{})
	if err != nil {
		return plan, engineError(err)
	}
	recs, err := m.store.List(ctx)
	if err != nil {
		return plan, err
	}
	slices.Reverse(found) // the newest of a key is the one that was used last
	known := map[string]bool{}
	for _, rec := range recs {
		known[rec.ID] = true
	}
	there, unreadable := map[string]backend.Info{}, map[string]bool{}
	now := m.now()
	for _, engine := range found {
		age := now.Sub(engine.Created)
		ended := engine.Ephemeral && engine.State == backend.StateStopped && age >= lifetimes.Ended
		if ended && engine.Instance != m.opts.Instance {
			plan.strays = append(plan.strays, engine) // no other process looks for it
		}
		if !record.ValidSandboxID(engine.SessionID) || engine.Instance != m.opts.Instance {
			continue // looks like ours and is not
		}
		key, err := record.ParseKey(engine.Key)
		if err != nil {
			unreadable[engine.SessionID] = true
			continue
		}
		there[engine.SessionID] = engine
		switch {
		case !m.shared || known[engine.SessionID] || age <= lifetimes.CreationGrace:
		case !m.forged(ctx, engine.SessionID):
			plan.unrecorded = append(plan.unrecorded, m.recordOf(engine, key))
		case key.Namespace != record.NamespaceUser && age > lifetimes.Unrecorded: // if records were lost, named ones are for users to remove
			plan.strays = append(plan.strays, engine)
		}
	}
	for _, rec := range recs {
		engine, onEngine := there[rec.ID]
		switch {
		case rec.Engine != m.opts.Engine && !onEngine, unreadable[rec.ID]:
			continue // another engine's, or for somebody to look at
		case !m.shared && rec.Owner != m.owner:
			continue // nobody knows whose it is
		}
		rule, isDue := custody.Due(rec, now, engine.State)
		if !isDue {
			continue
		}
		held, err := m.held(ctx, rec)
		if err != nil {
			return plan, err
		}
		if !held {
			plan.reclaim = append(plan.reclaim, reclaimable{rec, rule})
		}
	}
	return plan, nil
}

// held reports whether a living process has what a record is about. This one has what it makes or has open, not what it
// lost, or could not remove, and closed.
func (m *Manager) held(ctx context.Context, rec record.Record) (bool, error) {
	if rec.Owner == m.owner {
		return rec.State.Live() || has(m, m.byID, rec.ID), nil
	}
	return m.store.Lives(ctx, rec.Owner)
}

// nobody is the owner of what this manager has no use for any more: itself where no other process knows of it.
func (m *Manager) nobody() string {
	if m.shared {
		return ""
	}
	return m.owner
}

// recordOf makes the record of a sandbox from its labels. What nobody knows any more is decided for keeping it.
func (m *Manager) recordOf(engine backend.Info, key Key) record.Record {
	now := m.now()
	rec := record.Record{
		ID: engine.SessionID, Key: key, Engine: m.opts.Engine, EngineID: engine.ID, State: record.Ready,
		Created: engine.Created, LastUsed: now, Idle: -1,
	}
	custody.SetWorkspace(&rec, engine)
	switch {
	case key.Namespace != record.NamespaceUser:
		rec.Idle = lifetimes.Unrecorded
		rec.Expires = now.Add(rec.Idle)
	case !m.shared: // this manager is all who will know of it
		rec.Idle = 0
	}
	return rec
}

// reclaim takes a record that nobody has and applies a rule, unless its sandbox turns out to be used.
func (m *Manager) reclaim(ctx context.Context, rec record.Record, rule owner.Rule) error {
	taken, err := m.store.Take(ctx, rec.ID, rec.Owner, m.owner)
	if isOvertaken(err) {
		return nil
	}
	if err != nil {
		return err
	}
	use := unused
	switch {
	case taken.State != rec.State:
		taken.Owner = rec.Owner // a later sweep's
		m.save(taken)
		return nil
	case rule.While == owner.NotBusy:
		use = m.useOf(ctx, taken)
	case rule.While == owner.NotConnected:
		use = m.connectedTo(ctx, taken)
	}
	switch now, err := m.store.Get(ctx, rec.ID); {
	case err != nil: // so it may have been used, or be another's by now
		taken.Owner = rec.Owner
		m.save(taken)
		return err
	case !now.Expires.Equal(taken.Expires): // used just now
		taken, use = now, used
	}
	if use == silent && m.now().After(taken.LastUsed.Add(taken.Idle+lifetimes.Silent)) {
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
		engine, _, err := m.find(ctx, taken.ID)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			taken.Owner = ""
			m.save(taken)
			return err
		}
		return m.suspend(ctx, taken, engine.ID) // where the engine has none, its workspace may be there
	}
	m.log.InfoContext(ctx, "removing a sandbox without an owner, and its processes",
		"sandbox", rec.ID, "key", rec.Key.String(), "state", string(rec.State), "reason", taken.Reason)
	if err := m.deleteSandbox(ctx, taken); err != nil {
		return err
	}
	m.countRemoved(ctx, telemetry.RemovedOrphan)
	return nil
}

// putBack gives up a record that was taken to be reclaimed.
func (m *Manager) putBack(ctx context.Context, rec record.Record, use use) {
	rec.Owner = m.nobody()
	if now := m.now(); rec.Expired(now) && ctx.Err() == nil {
		rec.Expires = now.Add(rec.Idle)
		if use == used {
			rec.LastUsed = now
		}
	}
	m.save(rec)
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
	if _, _, err := m.find(ctx, rec.ID); err == nil && !rec.Expired(m.now()) {
		return used
	}
	return m.useByGuest(ctx, rec, func(h wire.Health) bool { return h.Running > 0 })
}

// connectedTo returns whether a process is connected to a sandbox without an owner.
func (m *Manager) connectedTo(ctx context.Context, rec record.Record) use {
	return m.useByGuest(ctx, rec, func(h wire.Health) bool { return h.Hosts > 1 }) // one of them asks
}

// useByGuest asks the guest of a sandbox whether that is used.
func (m *Manager) useByGuest(ctx context.Context, rec record.Record, uses func(wire.Health) bool) use {
	engine, _, err := m.find(ctx, rec.ID)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return unused
	case err != nil, engine.State == backend.StatePaused:
		return silent
	case engine.State != backend.StateRunning:
		return unused
	}
	health, err := m.health(ctx, engine.ID)
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

// health asks the guest of a sandbox without a session how it is.
func (m *Manager) health(ctx context.Context, engineID string) (wire.Health, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout+healthTimeout, errNoAnswer)
	defer cancel()
	conn, err := m.attach(ctx, engineID)
	if err != nil {
		return wire.Health{}, noAnswer(ctx, err)
	}
	defer conn.Close() // nothing was asked of it but a question
	health, err := conn.Health(ctx)
	return health, noAnswer(ctx, err)
}

// deleteSandbox removes all that the engine has of a record that is this manager's, and closes the record. What cannot be removed
// before ctx ends belongs to nobody again, for the next round or another process.
func (m *Manager) deleteSandbox(ctx context.Context, rec record.Record) error {
	ready := rec.State == record.Ready
	rec.KeepWorkspace = false // it was for the next sandbox of the key, which there will not be
	missed := !rec.Ended && rec.Key.Namespace == record.NamespaceWorkflow && rec.EngineID != ""
	if rec.State.Live() {
		rec.Expires = m.now()
	}
	if rec.State != record.Closed {
		rec.State = record.Removing
	}
	if m.save(rec) { // else the key is free, and nobody adopts it
		return errOvertaken
	}
	there, err := m.removeAll(ctx, rec)
	rec.Owner = m.nobody()
	switch {
	case err == nil && missed: // who resumes the run must hear of it
		rec.State, rec.Expires = record.Closed, m.now().Add(lifetimes.Missed)
	case err == nil && ready && !there: // if it comes back, it is found as one that has no record
		return m.store.Delete(ctx, rec.ID)
	case err == nil:
		rec.State, rec.Expires = record.Closed, m.now().Add(lifetimes.Remembered)
	}
	m.save(rec)
	return err
}

// removeAll removes whatever the engine has under a record's id, and reports whether there was anything.
func (m *Manager) removeAll(ctx context.Context, rec record.Record) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lifetimes.Removal)
	defer cancel()
	found, err := m.b.List(ctx, backend.Filter{Instance: m.opts.Instance, SessionID: rec.ID})
	if err != nil {
		return false, engineError(err)
	}
	for _, engine := range found {
		if engine.SessionID != rec.ID || engine.Instance != m.opts.Instance {
			continue
		}
		there = true
		if err := m.b.Remove(ctx, engine.ID, backend.RemoveOptions{Volumes: true}); err != nil {
			return there, engineError(err)
		}
	}
	if !there {
		err = m.removeRemains(ctx, rec, true)
	}
	if !there && err == nil {
		err = m.removeWorkspace(ctx, rec.ID)
	}
	return there, err
}

// removeRemains removes what the engine may have of a sandbox that it does not list, because something else removed it.
func (m *Manager) removeRemains(ctx context.Context, rec record.Record, volumes bool) error {
	if rec.EngineID == "" {
		return nil
	}
	if info, err := m.b.Get(ctx, rec.EngineID); err == nil && (info.Instance != m.opts.Instance || info.SessionID != rec.ID) {
		return fmt.Errorf("%w: the engine's sandbox of record %s belongs to another instance", backend.ErrExists, rec.ID)
	}
	return engineError(m.b.Remove(ctx, rec.EngineID, backend.RemoveOptions{Volumes: volumes}))
}

// removeWorkspace removes the workspace of a session that has no sandbox: the process that removed it died before the rest was
// gone, or the workspace was kept for another sandbox that was never made.
func (m *Manager) removeWorkspace(ctx context.Context, id string) error {
	err := m.b.RemoveWorkspace(ctx, m.opts.Instance, id)
	if errors.Is(err, backend.ErrUnsupported) {
		return nil
	}
	return engineError(err)
}

// A manager that was killed, or whose machine lost its power, cleans nothing up. So every guest ends itself when it was
// alone for long enough, and what has ended is removed by the sweep of the instance, or of anybody where the instance was
// this manager's alone.

// orphanTimeout returns how long the guest of a session's sandbox goes on alone; zero is for ever.
func (s *Session) orphanTimeout() time.Duration {
	if s.idle < 0 {
		return 0
	}
	return max(s.idle, s.req.Retention, custody.SecondaryIdle(record.Record{Idle: s.idle})) + lifetimes.OrphanMargin
}
