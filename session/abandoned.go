package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// RemoveScope implements admin.RemoveScope.
func (m operations) RemoveScope(ctx context.Context, scope record.Scope) (removed []string, err error) {
	removed, err = m.keeper.RemoveScope(ctx, scope)
	return removed, sandbox.WrapError("Remove", m.driver, "", err)
}

// closeOrphans closes the run's sandboxes without a living owner. For example, a step used such a sandbox, and the step
// had finished when the process died. If another process resumed the run, closeOrphans leaves the process's sandboxes
// alone, except with Options.Join.
func (m *Manager) closeOrphans(ctx context.Context, scope record.Scope) error {
	recs, err := m.store.List(ctx, record.Creating, record.Ready)
	if err != nil {
		return sandbox.WrapError("Close", m.driver, "", err)
	}
	var errs []error
	for _, rec := range recs {
		own := rec.Owner == m.owner && !m.keeper.Unused(rec)
		if rec.Key.Scope() != scope || rec.Engine != m.opts.Engine || own {
			continue
		}
		errs = append(errs, m.endUnowned(ctx, rec, owner.RunEnded))
	}
	return errors.Join(errs...)
}

// endUnowned handles an event for the sandbox of a record. If another process has the sandbox, endUnowned does nothing,
// except with Options.Join.
func (m *Manager) endUnowned(ctx context.Context, rec record.Record, event owner.Event) error {
	err := m.keeper.EndUnowned(ctx, rec, event)
	if m.opts.Join && errors.Is(err, custody.ErrOpenElsewhere) {
		err = m.keeper.RemoveHeld(ctx, rec.ID, event)
	}
	if errors.Is(err, backend.ErrExists) {
		return nil
	}
	return sandbox.WrapError("Close", m.driver, rec.ID, err)
}

// Gone returns the keys of a scope whose sandbox was lost, has expired, or was removed by another process. Opening such
// a key creates an empty sandbox. Gone omits keys with a newer sandbox, keys whose sandbox was closed by the owner, and
// sandboxes whose record the store has deleted since. there contains the keys of the existing sandboxes. Calling Gone
// counts as a use of them, to keep them until they are opened. If nothing is recorded, Gone does not query the engine.
func (m *Manager) Gone(ctx context.Context, scope record.Scope) (gone, there []Key, err error) {
	recs, err := m.store.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	last := map[Key]record.Record{} // the latest record of each key; List returns them in order of creation
	for _, rec := range recs {
		// A record without an engine id belongs to an unfinished creation, so no caller received the sandbox.
		if rec.Key.Scope() == scope && rec.Engine == m.opts.Engine && rec.EngineID != "" {
			last[rec.Key] = rec
		}
	}
	for key, rec := range last {
		if rec.Ended {
			continue
		}
		exists := rec.State == record.Ready
		now := m.now()
		until := now.Add(max(rec.Idle, DefaultReapEvery))
		if exists && !rec.Expires.IsZero() && rec.Expires.Before(until) {
			err := m.store.Touch(ctx, rec.ID, now, until)
			if exists = !errors.Is(err, backend.ErrNotFound); exists && err != nil {
				return nil, nil, err
			}
		}
		if exists {
			engine, _, err := m.keeper.Find(ctx, rec.ID)
			switch {
			case err == nil && engine.State == backend.StateStopped:
				exists = m.keeper.KeepsFiles(engine.Limits, engine.Workspace)
			case errors.Is(err, backend.ErrNotFound):
				exists = false
				if rec, err = m.store.Get(ctx, rec.ID); err == nil && rec.WorkspaceOnly() { // the files may have just been kept
					exists, _, err = m.keeper.LookForWorkspace(ctx, rec.ID)
				}
			}
			if err != nil && !errors.Is(err, backend.ErrNotFound) {
				return nil, nil, sandbox.WrapError("Gone", m.driver, "", err)
			}
		}
		if exists {
			there = append(there, key)
		} else {
			gone = append(gone, key)
		}
	}
	for _, list := range [][]Key{gone, there} {
		slices.SortFunc(list, func(a, b Key) int { return strings.Compare(a.Name, b.Name) })
	}
	return gone, there, nil
}

// Abandoned implements admin.Abandoned.
func (m operations) Abandoned(ctx context.Context) ([]record.Record, error) {
	found, err := m.b.List(ctx, backend.Filter{Instance: m.opts.Instance})
	if err != nil {
		return nil, sandbox.WrapError("Abandoned", m.driver, "", engineError(err))
	}
	recs, err := m.store.List(ctx)
	if err != nil {
		return nil, err
	}
	var abandoned []record.Record
	for _, rec := range recs {
		onEngine := slices.ContainsFunc(found, func(engine backend.Info) bool { return engine.SessionID == rec.ID })
		if !onEngine && !m.keeper.LeavesWorkspace(rec) {
			continue
		}
		lives := false
		if rec.Owner != m.owner {
			lives, err = m.store.Lives(ctx, rec.Owner)
		} else if lives = m.own(rec.ID) != nil; !lives { // a sweep of this manager is checking the sandbox
			rec.Owner = m.keeper.NoOwner()
		}
		if err != nil {
			return nil, err
		}
		if !lives {
			abandoned = append(abandoned, rec)
		}
	}
	return abandoned, nil
}

// connectedWait is how long RemoveAbandoned waits until other processes have disconnected and a sweep has ended.
const connectedWait = 5 * time.Second

// errConnected reports a process connected to a sandbox without an owner.
var errConnected = sanitize.NewError("another process is connected to the sandbox", backend.ErrExists)

// RemoveAbandoned implements admin.RemoveAbandoned.
func (m operations) RemoveAbandoned(ctx context.Context, rec record.Record) error {
	for until := time.Now().Add(connectedWait); ; {
		err := errConnected // the guest may need some time to notice the end of a killed process
		if m.connectedTo(ctx, rec) != used {
			if err = m.keeper.EndUnowned(ctx, rec, owner.Removed); !errors.Is(err, custody.ErrInTransition) {
				return sandbox.WrapError("Remove", m.driver, rec.ID, err)
			}
		}
		if time.Now().After(until) || !bound.Pause(ctx, custody.HandoverPause) {
			return sandbox.WrapError("Remove", m.driver, rec.ID, err)
		}
	}
}
