package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/record"
)

// silentWait is how long an opener waits for another process before the wait is logged.
const silentWait = 3 * time.Second

// reserve records that this manager makes the sandbox of s, or adopts the one that a dead process left under its key
// and returns its session. put writes the record, and fails with backend.ErrExists when the key has another one. For a
// manager whose owner is dead there is none to wait for.
func (m *Manager) reserve(ctx context.Context, s *Session, req Request, put func() error) (*Session, error) {
	if s.key.Namespace == record.NamespaceUser {
		if err := m.keeper.RecordFound(ctx, backend.Filter{Key: s.key.String()}, s.key.Scope()); err != nil {
			return nil, err
		}
	}
	start, logged := time.Now(), false
	began := start
	for {
		err := put()
		if !errors.Is(err, backend.ErrExists) || errors.Is(err, record.ErrOwnerLost) {
			return nil, err
		}
		adopted, err := m.adopt(ctx, s.key, req)
		switch {
		case adopted != nil || err != nil && time.Since(began) >= m.waitFor(s.key, err):
			return adopted, err
		case errors.Is(err, custody.ErrInTransition) && m.awaits(s.key):
			began = time.Now() // who has made it gets time to let go of it
			if !logged && time.Since(start) >= silentWait {
				logged = true
				m.log.WarnContext(ctx, "waiting for another process to open or remove the sandbox", "key", s.key.String())
			}
		}
		if !bound.Pause(ctx, custody.HandoverPause) {
			return nil, ctx.Err()
		}
	}
}

// awaits reports whether openers of a key wait for the process that is about to let go of its sandbox, or to have made
// it. A named sandbox is everybody's.
func (m *Manager) awaits(key Key) bool { return m.opts.Join || key.Namespace == record.NamespaceUser }

// waitFor returns how long to wait while an attempt to adopt a key's sandbox fails with err.
func (m *Manager) waitFor(key Key, err error) time.Duration {
	named := m.awaits(key)
	switch {
	case errors.Is(err, custody.ErrInTransition) && named:
		return math.MaxInt64 // as long as the caller does
	case errors.Is(err, custody.ErrInTransition):
		return custody.Lifetimes.Transition
	case errors.Is(err, custody.ErrHeld) && named:
		return custody.Lifetimes.Handover
	}
	return 0
}

// adopt adopts the sandbox of a key whose owner is dead. Without a session and an error the caller has to look again.
func (m *Manager) adopt(ctx context.Context, key Key, req Request) (*Session, error) {
	rec, err := m.keeper.Holder(ctx, key)
	if errors.Is(err, backend.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if rec.Owner == m.owner {
		if m.keeper.Unsaved(rec.ID) {
			text := fmt.Sprintf("the removal of sandbox %s is not recorded yet", rec.ID)
			return nil, &sanitize.Error{Text: text, Err: record.ErrHeld}
		}
		return nil, nil // about to go
	}
	taken, err := m.keeper.TakeUnowned(ctx, rec)
	if m.opts.Join && errors.Is(err, custody.ErrHeld) {
		return m.join(ctx, rec, req)
	}
	if err != nil {
		return nil, err
	}
	s, err := m.openAdopted(ctx, &taken, key, req)
	if s == nil && err == nil {
		return nil, m.keeper.Delete(context.WithoutCancel(ctx), taken)
	}
	if err != nil {
		taken.Owner = ""
		m.keeper.Save(taken)
	}
	return s, err
}

// openAdopted makes a session of a recorded sandbox, and starts it when it was stopped. What it changed of rec is
// stored also when it fails. Without a session and an error there is no such sandbox, or it was never finished. A named
// one that the engine does not have, though nobody asked for its removal, is created again: its workspace may be there.
func (m *Manager) openAdopted(ctx context.Context, rec *record.Record, key Key, req Request) (*Session, error) {
	if rec.State != record.Ready {
		return nil, nil
	}
	engine, err := m.keeper.FindRecorded(ctx, *rec)
	if errors.Is(err, backend.ErrNotFound) {
		return m.recreate(ctx, *rec, req)
	}
	if err != nil {
		return nil, err
	}
	if req.Mode == OpenRebuild {
		if s, err := m.rebuild(ctx, rec, engine, req); s != nil || err != nil {
			return s, err
		}
	}
	if fields := conflicts(rec.Request, engine, req); fields != nil {
		return nil, &ConflictError{Key: key, Fields: fields}
	}
	if err := m.isolated(engine, req); err != nil {
		return nil, err
	}
	if engine.State == backend.StatePaused {
		return nil, sandbox.ErrPaused
	}
	fresh := engine.State != backend.StateRunning
	if fresh && rec.WorkspaceOnly() && engine.Root != backend.RootWritable && m.keeper.CanKeep(ctx, engine) == nil {
		// The workspace has all files, and an engine may be unable to start what died.
		if err := m.keeper.RemoveEngine(ctx, engine.ID, false); err != nil {
			return nil, err
		}
		return m.recreate(ctx, *rec, req)
	}
	if fresh {
		if err := m.keeper.Resume(ctx, rec, engine.ID); err != nil {
			return nil, err
		}
	}
	s, err := m.sessionOf(ctx, *rec, engine.ID, req)
	if err != nil {
		return nil, err
	}
	if err := m.canStop(req.IdlePolicy, s.engine.Limits, s.engine.Workspace); err != nil {
		return nil, err
	}
	err = s.connect(ctx)
	if err == nil {
		err = s.prepare(ctx, false, req.OnAdopt)
	}
	if err != nil {
		s.control.Close()
		return nil, err
	}
	return s, nil
}

// sessionOf makes a session of a recorded sandbox that is fit for a request. It has no connection yet.
func (m *Manager) sessionOf(ctx context.Context, rec record.Record, engineID string, req Request) (*Session, error) {
	engine, err := m.b.Get(ctx, engineID) // List does not return the image's environment
	if err != nil {
		return nil, engineError(err)
	}
	engine = custody.Identify(rec, engine)
	as, made := req, rec.Request
	if req.Mode == OpenAsIs {
		as = foundRequest(engine)
		as.Env, as.IdleTimeout, as.ExecTimeout = req.Env, req.IdleTimeout, req.ExecTimeout
		if had, _ := decodeShape(rec.Request); had.Egress.Equal(req.Egress) {
			as.Egress = req.Egress
		}
	} else {
		made = req.shape().encode()
	}
	as.Retention = max(req.Retention, rec.Retention)
	s := m.newSession(rec.Key, as, engine.SessionID)
	s.engine, s.created, s.made, s.asIs = engine, engine.Created, made, req.Mode == OpenAsIs
	s.engine.State = backend.StateRunning
	s.follow(rec, req)
	return s, nil
}

// foundRequest returns the request that a sandbox was made for, as far as the engine knows.
func foundRequest(engine backend.Info) Request {
	mounts, caches := splitMounts(engine.Mounts)
	return Request{
		Image: engine.Image, User: engine.User, Root: engine.Root, Limits: engine.Limits, Network: engine.Network, Mounts: mounts, Caches: caches,
		IdleTimeout: -1, ExecTimeout: sandbox.DefaultExecTimeout,
	}
}

// errForged means that the labels of a sandbox are not enough to use it.
var errForged error = &sanitize.Error{Err: backend.ErrPermission,
	Text: "the sandbox has no record in this store, and other users of this engine can create one with its labels"}

// has reports whether one of the manager's maps has an entry for a sandbox.
func has[V any](m *Manager, byID map[string]V, id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := byID[id]
	return ok
}
