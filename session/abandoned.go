package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/internal/owner"
)

// RemoveScope removes the sandboxes of a scope that dead processes left behind, with their workspaces, and returns their ids.
// One that a living process has is backend.ErrExists, and stays. Unlike CloseScope it needs no session.
func (m *Manager) RemoveScope(ctx context.Context, scope Scope) (removed []string, err error) {
	removed, err = m.removeScope(ctx, scope)
	return removed, wrapError("Remove", m.driver, "", err)
}

func (m *Manager) removeScope(ctx context.Context, scope Scope) (removed []string, err error) {
	if err := m.recordScope(ctx, scope); err != nil {
		return nil, err
	}
	for began := time.Now(); ; {
		recs, err := m.store.List(ctx, RecordCreating, RecordReady, RecordRemoving, RecordLost)
		if err != nil {
			return removed, err
		}
		var errs []error
		for _, rec := range recs {
			if rec.Key.Scope() != scope || rec.Engine != m.opts.Engine || rec.State == RecordLost && rec.Owner == "" {
				continue
			}
			if err := m.removeAbandoned(ctx, rec); err != nil {
				errs = append(errs, err)
				continue
			}
			removed = append(removed, rec.ID)
		}
		err = errors.Join(errs...)
		if !errors.Is(err, errInTransition) || time.Since(began) > lifetimes.Transition {
			return removed, err
		}
		if !pause(ctx, handoverPause) {
			return removed, ctx.Err()
		}
	}
}

// removeAbandoned removes the sandbox of a record that no living process has.
func (m *Manager) removeAbandoned(ctx context.Context, rec Record) error {
	if err := m.isFree(ctx, rec); err != nil {
		return err
	}
	rec, err := m.store.Take(ctx, rec.ID, rec.Owner, m.owner)
	if errors.Is(err, backend.ErrExists) {
		return errInTransition
	}
	if err != nil {
		return err
	}
	return m.deleteSandbox(context.WithoutCancel(ctx), rec)
}

// closeOrphans closes what a process that is gone had in a run's scope and nobody adopted: sandboxes that only steps
// used which had finished by then.
func (m *Manager) closeOrphans(ctx context.Context, scope Scope) error {
	recs, err := m.store.List(ctx, RecordCreating, RecordReady)
	if err != nil {
		return wrapError("Close", m.driver, "", err)
	}
	var errs []error
	for _, rec := range recs {
		if rec.Key.Scope() != scope || rec.Engine != m.opts.Engine || rec.Owner == m.owner {
			continue
		}
		errs = append(errs, wrapError("Close", m.driver, rec.ID, m.closeOrphan(ctx, rec)))
	}
	return errors.Join(errs...)
}

// closeOrphan closes the sandbox of a record as its session would have been, unless a living process has it.
func (m *Manager) closeOrphan(ctx context.Context, rec Record) error {
	if lives, err := m.store.Lives(ctx, rec.Owner); lives || err != nil {
		return err
	}
	rec, err := m.store.Take(ctx, rec.ID, rec.Owner, m.owner)
	if isOvertaken(err) {
		return nil // by a sweep, or by a process that resumed the run
	}
	if err != nil {
		return err
	}
	end, _ := owner.On(rec.facts(""), owner.RunEnded)
	rec.State, rec.KeepWorkspace, rec.Expires = RecordRemoving, false, m.now()
	if end.To != owner.Retained {
		return m.deleteSandbox(ctx, rec)
	}
	rec.Owner, rec.Expires = "", m.now().Add(rec.Retention)
	m.save(rec)
	return nil
}

// recordScope makes records of the sandboxes of a scope that have none.
func (m *Manager) recordScope(ctx context.Context, scope Scope) error {
	found, err := m.b.List(ctx, backend.Filter{Instance: m.opts.Instance})
	if err != nil {
		return engineError(err)
	}
	for _, engine := range found {
		if key, err := ParseKey(engine.Key); err == nil && key.Scope() == scope && engine.Instance == m.opts.Instance {
			if err := m.recordFound(ctx, key); err != nil {
				return err
			}
		}
	}
	return nil
}

// Gone returns the keys of a scope whose sandbox was lost, expired or was removed by others, and has no other in its place:
// who opens one of them begins with an empty sandbox. One that its holder closed is not missed, and keys of sandboxes that
// went long ago are forgotten. To ask counts as a use of those that are there, so that they do not expire before they are opened.
func (m *Manager) Gone(ctx context.Context, scope Scope) ([]Key, error) {
	recs, err := m.store.List(ctx)
	if err != nil {
		return nil, err
	}
	last := map[Key]Record{} // the latest of each key: they come in the order of their creation
	for _, rec := range recs {
		// One without an id of the engine was never finished, and so nobody had it.
		if rec.Key.Scope() == scope && rec.Engine == m.opts.Engine && rec.EngineID != "" {
			last[rec.Key] = rec
		}
	}
	var gone []Key
	for key, rec := range last {
		if rec.Ended {
			continue
		}
		there := rec.State == RecordReady
		if there && !rec.Expires.IsZero() {
			now := m.now()
			err := m.store.Touch(ctx, rec.ID, now, now.Add(max(rec.Idle, DefaultReapEvery)))
			if there = !errors.Is(err, backend.ErrNotFound); there && err != nil {
				return nil, err
			}
		}
		if there {
			_, _, err := m.find(ctx, rec.ID)
			if errors.Is(err, backend.ErrNotFound) {
				there, err = m.isWorkspaceOnly(ctx, rec.ID)
			}
			if err != nil {
				return nil, wrapError("Gone", m.driver, "", err)
			}
		}
		if !there {
			gone = append(gone, key)
		}
	}
	slices.SortFunc(gone, func(a, b Key) int { return strings.Compare(a.Name, b.Name) })
	return gone, nil
}

// Abandoned returns the records of the sandboxes on this engine that no living process has: those of interrupted runs and dead
// processes, retained ones, and those that Detach left. The sweep removes each of them when its time is over.
func (m *Manager) Abandoned(ctx context.Context) ([]Record, error) {
	found, err := m.b.List(ctx, backend.Filter{Instance: m.opts.Instance})
	if err != nil {
		return nil, wrapError("Abandoned", m.driver, "", engineError(err))
	}
	there := map[string]bool{}
	for _, engine := range found {
		there[engine.SessionID] = true
	}
	recs, err := m.store.List(ctx)
	if err != nil {
		return nil, err
	}
	var abandoned []Record
	for _, rec := range recs {
		if !there[rec.ID] && !m.leavesWorkspace(rec) {
			continue
		}
		lives, err := m.store.Lives(ctx, rec.Owner)
		if err != nil {
			return nil, err
		}
		if !lives {
			abandoned = append(abandoned, rec)
		}
	}
	return abandoned, nil
}

// errConnected: a process is connected to a sandbox that belongs to none.
var errConnected error = &textError{text: "another process is connected to it", err: backend.ErrExists}

// RemoveAbandoned removes a sandbox that Abandoned returned, with its workspace. One that another process adopted since, or to
// which a process is connected, is backend.ErrExists, and stays.
func (m *Manager) RemoveAbandoned(ctx context.Context, rec Record) error {
	if m.connectedTo(ctx, rec) == used {
		return wrapError("Remove", m.driver, rec.ID, errConnected)
	}
	return wrapError("Remove", m.driver, rec.ID, m.removeAbandoned(ctx, rec))
}
