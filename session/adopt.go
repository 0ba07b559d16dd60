package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/record"
)

// silentWait is how long Open waits for another process before it logs the wait.
const silentWait = 3 * time.Second

// reserve calls put to record this manager as the creator of the sandbox of s. put returns an error wrapping
// backend.ErrExists if the key already has a sandbox. If the sandbox's owner is dead, reserve adopts the sandbox and
// returns a session. If this manager's own owner is dead, reserve fails at once, because waiting cannot help.
func (m *Manager) reserve(ctx context.Context, s *Session, req Request, put func() error) (*Session, error) {
	if s.key.Namespace == record.NamespaceUser {
		if err := m.keeper.RecordFound(ctx, backend.Filter{Key: s.key.String()}, s.key.Scope()); err != nil {
			return nil, err
		}
	}
	began, logged := time.Now(), false
	phase := began // the start of the wait for the current holder
	for {
		err := put()
		if !errors.Is(err, backend.ErrExists) || errors.Is(err, record.ErrOwnerLost) {
			return nil, err
		}
		adopted, err := m.adopt(ctx, s.key, req)
		if err == nil || !m.keepsWaiting(s.key, err, time.Since(phase)) {
			return adopted, err
		}
		if errors.Is(err, custody.ErrInTransition) && m.awaits(s.key) {
			phase = time.Now() // the other process has created the sandbox and gets time to release it
			if !logged && time.Since(began) >= silentWait {
				logged = true
				m.log.WarnContext(ctx, "waiting for another process to open or remove the sandbox", "key", s.key.String())
			}
		}
		if !bound.Pause(ctx, custody.HandoverPause) {
			return nil, ctx.Err()
		}
	}
}

// awaits reports whether openers of a key wait for another process during creation or release of the key's sandbox. All
// processes may open a named sandbox, so openers of named sandboxes always wait.
func (m *Manager) awaits(key Key) bool { return m.opts.Join || key.Namespace == record.NamespaceUser }

// keepsWaiting reports whether to try again after adopting a key's sandbox failed with err.
func (m *Manager) keepsWaiting(key Key, err error, waited time.Duration) bool {
	switch {
	case errors.Is(err, custody.ErrInTransition):
		return m.awaits(key) || waited < custody.Lifetimes.Transition
	case errors.Is(err, custody.ErrOpenElsewhere):
		return m.awaits(key) && waited < custody.Lifetimes.Handover
	}
	return errors.Is(err, errAgain)
}

// adopt adopts the sandbox of a key whose owner is dead. If the key is free by now, it returns errAgain.
func (m *Manager) adopt(ctx context.Context, key Key, req Request) (*Session, error) {
	rec, err := m.keeper.Holder(ctx, key)
	if errors.Is(err, backend.ErrNotFound) {
		return nil, errAgain
	}
	if err != nil {
		return nil, err
	}
	if rec.Owner == m.owner && !m.keeper.Unused(rec) {
		if m.keeper.Unsaved(rec.ID) {
			text := fmt.Sprintf("the removal of sandbox %s is not recorded yet", rec.ID)
			return nil, sanitize.NewError(text, record.ErrHeld)
		}
		return nil, errAgain // this manager is removing it
	}
	taken, err := m.keeper.TakeUnowned(ctx, rec)
	if m.opts.Join && errors.Is(err, custody.ErrOpenElsewhere) {
		return m.join(ctx, rec, req)
	}
	if err != nil {
		return nil, err
	}
	defer m.keeper.Done(rec.ID)
	m.dropGrants(rec.ID) // the former owner may have been killed
	s, err := m.openAdopted(ctx, &taken, key, req, adoptTries)
	if errors.Is(err, errAgain) {
		return nil, cmp.Or(m.keeper.Delete(context.WithoutCancel(ctx), taken), errAgain)
	}
	if err != nil {
		taken.Owner = ""
		m.keeper.Save(taken)
	}
	return s, err
}

// dropGrants ends the access to the hosts that an operator allowed in addition to Request.Egress. They apply only while
// the sandbox has the same owner.
func (m *Manager) dropGrants(id string) {
	if g, ok := m.opts.Egress.(interface{ DropGrants(sandbox string) }); ok {
		g.DropGrants(id)
	}
}

// adoptTries is how often openAdopted tries to open a sandbox that has just ended. The pauses double to 6 s in total,
// because containerd may need 5 s to clean up after a dead runtime. Until then, Docker reports the sandbox as running.
const adoptTries = 8

// openAdopted returns a session for a recorded sandbox. It starts the sandbox if the sandbox is stopped. The caller
// must store the changes to rec even if openAdopted fails. If the sandbox does not exist or was never finished,
// openAdopted returns errAgain, and the caller must delete rec. If the engine lost a named sandbox whose removal was
// not requested, openAdopted recreates the sandbox, because the workspace may still exist.
func (m *Manager) openAdopted(ctx context.Context, rec *record.Record, key Key, req Request, tries int) (
	*Session, error) {
	if rec.State != record.Ready {
		return nil, errAgain
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
		// The workspace has all files, and the engine may be unable to start a dead container.
		if err := m.keeper.RemoveEngine(ctx, engine.ID, false); err != nil {
			return nil, err
		}
		return m.recreate(ctx, *rec, req)
	}
	if err := m.canStop(req.IdlePolicy, engine.Limits, engine.Workspace); err != nil {
		return nil, err
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
	err = s.connect(ctx)
	if errors.Is(err, backend.ErrLost) && tries > 1 && bound.Pause(ctx, custody.HandoverPause<<(adoptTries-tries)) {
		s.control.Close() // it has just ended, and an engine's list may show this seconds later
		return m.openAdopted(ctx, rec, key, req, tries-1)
	}
	if err == nil {
		err = s.settle(ctx, false, req.OnAdopt)
	}
	if err != nil {
		s.control.Close()
		return nil, err
	}
	return s, nil
}

// sessionOf returns a session for a recorded sandbox and a matching request. The session is not connected yet.
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

// foundRequest returns a sandbox's original request, with the fields known to the engine.
func foundRequest(engine backend.Info) Request {
	mounts, caches := splitMounts(engine.Mounts)
	return Request{
		Image: engine.Image, User: engine.User, Root: engine.Root, Limits: engine.Limits, Network: engine.Network,
		Mounts: mounts, Caches: caches, IdleTimeout: -1, ExecTimeout: sandbox.DefaultExecTimeout,
	}
}
