package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/record"
)

// A rebuild removes a sandbox and creates a new one with the same id and the kept workspace. In between, the record has
// Record.KeepWorkspace set. If the process crashes then, the next opener of the key resumes with the workspace.

// errBusy reports running commands in a sandbox to rebuild.
var errBusy = sanitize.NewError("commands are running in the sandbox", backend.ErrExists)

// reopenIdle closes an idle session of this manager, to allow the sandbox to be adopted and rebuilt.
func (m *Manager) reopenIdle(ctx context.Context, s *Session, req Request) (_ *Session, created bool, _ error) {
	switch busy, err := s.control.Busy(ctx); {
	case err != nil:
		return nil, false, err
	case busy:
		return nil, false, errBusy
	}
	return m.reopen(ctx, s, req, uncalled)
}

// rebuild rebuilds a sandbox for req. The sandbox's record must belong to this manager. If the sandbox already matches
// req, rebuild returns neither a session nor an error.
func (m *Manager) rebuild(ctx context.Context, rec *record.Record, engine backend.Info, req Request) (*Session, error) {
	engine, err := m.b.Get(ctx, engine.ID)
	if err != nil {
		return nil, engineError(err)
	}
	same := engine.Hash == req.shape().hash()
	if custody.IsPooled(engine) { // the engine has the hash of the pool's request
		had, known := decodeShape(rec.Request)
		same = known && had.differences(req.shape()) == nil
	}
	current := func() bool { // if the engine does not know the image's ID, the sandbox is rebuilt
		id, _, err := m.imageID(ctx, req.Image)
		return same && err == nil && id != "" && id == engine.ImageID
	}
	if req.Pull != backend.PullAlways && current() {
		return nil, nil
	}
	trial, err := m.probe(ctx, req)
	if err != nil || current() {
		return nil, err
	}
	if err := m.checkWorkspace(trial, engine); err != nil {
		return nil, err
	}
	if engine.State == backend.StateRunning {
		switch health, err := sandbox.CheckHealth(ctx, m.b, engine.ID); {
		case err != nil:
			return nil, err
		case health.Running > 0:
			return nil, errBusy
		}
	}
	// The removal and the following creation must both complete, so they do not depend on ctx.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*custody.Lifetimes.Removal)
	defer cancel()
	rec.KeepWorkspace, rec.Expires, req.Prepare = true, time.Time{}, nil // the files already exist
	if err := m.store.Update(ctx, *rec); err != nil {
		return nil, err
	}
	if err := m.b.Remove(ctx, engine.ID, backend.RemoveOptions{}); err != nil {
		rec.KeepWorkspace = false // the old sandbox probably still exists and may be idle
		custody.NoteUse(rec, m.now())
		return nil, engineError(err)
	}
	return m.createOver(ctx, *rec, req)
}

// checkWorkspace returns an error if a sandbox like trial cannot use the workspace of a sandbox like had.
func (m *Manager) checkWorkspace(trial, had backend.Info) error {
	limit, wanted := had.Limits.WorkspaceBytes, trial.Limits.WorkspaceBytes
	switch {
	case trial.User != had.User:
		err := fmt.Errorf("%w: the workspace belongs to user %s, not to %s", backend.ErrUnsupported, had.User, trial.User)
		return hint.New(hint.Failed, err, fmt.Sprintf("run `workcell sandbox open --user %s …`", had.User))
	case wanted != limit:
		return fmt.Errorf("%w: a rebuild cannot change the workspace limit from %d to %d bytes",
			backend.ErrUnsupported, limit, wanted)
	case limit > 0 && trial.Workspace != had.Workspace && had.Workspace != backend.WorkspaceWatched && had.Workspace != "":
		// A monitored workspace is a plain directory, which every sandbox can use.
		return fmt.Errorf("%w: a rebuild cannot change the enforcement of the workspace limit from %q to %q",
			backend.ErrUnsupported, had.Workspace, trial.Workspace)
	case !m.keeper.KeepsFiles(had.Limits, had.Workspace):
		return fmt.Errorf("%w: cannot rebuild a sandbox whose files are lost when it stops", backend.ErrUnsupported)
	}
	return nil
}

// probe creates a sandbox for req, waits until the guest answers, and removes it. This verifies image, limits, and
// engine. If this process dies, a sweep removes the sandbox because of the record.
func (m *Manager) probe(ctx context.Context, req Request) (backend.Info, error) {
	s := m.newSession(UserKey("rebuild-"+record.NewID()), req, record.SandboxPrefix+record.NewID())
	rec := s.creating()
	if err := m.keeper.Insert(ctx, rec); err != nil {
		return backend.Info{}, err
	}
	info, err := m.make(ctx, s, req)
	if err = engineError(err); err == nil {
		s.engine = info
		err = s.connect(ctx)
	}
	s.control.Close()
	if gone := m.keeper.Delete(context.WithoutCancel(ctx), rec); err == nil {
		err = gone
	}
	return info, err
}

// recreate creates a sandbox missing on the engine again. It reuses the workspace. A named sandbox's workspace may be
// missing, a run's workspace is known to exist. The configuration must be unchanged, unless req requests a rebuild. If
// no part of the sandbox is left, recreate returns errAgain.
func (m *Manager) recreate(ctx context.Context, rec record.Record, req Request) (*Session, error) {
	named := rec.Key.Namespace == record.NamespaceUser
	if !named && !rec.WorkspaceOnly() {
		return nil, errAgain
	}
	conflict := gone(rec, req)
	req, beyond := asWas(rec, req)
	was, known := decodeShape(rec.Request)
	was.Env = req.shape().Env // the engine does not have the environment variables
	same := known && was.differences(req.shape()) == nil
	there, known, err := m.keeper.LookForWorkspace(ctx, rec.ID)
	if !there && (known || !named) && (!same || rec.WorkspaceOnly()) || err != nil {
		return nil, cmp.Or(err, errAgain)
	}
	if conflict != nil && req.Mode != OpenRebuild && !(named && rec.KeepWorkspace) {
		return nil, conflict
	}
	if beyond != nil {
		return nil, &ConflictError{Key: rec.Key, Fields: beyond, Gone: true}
	}
	if err := cmp.Or(m.permit(&req), m.checkEnvironment(req)); err != nil { // a record may contain any values
		return nil, refusedOpen(ctx, rec.Key, req, err)
	}
	if there {
		req.Prepare = nil // the files already exist
	}
	if !named || !rec.WorkspaceOnly() {
		m.log.WarnContext(ctx, "recreating a missing sandbox: its workspace is unchanged, processes and other files are lost",
			"sandbox", rec.ID, "key", rec.Key.String())
	}
	if had := custody.Workspace(rec); had.User != "" && req.User != had.User {
		return nil, m.checkWorkspace(backend.Info{User: req.User}, had)
	}
	if err := m.keeper.RemoveRemains(ctx, rec, false); err != nil {
		return nil, err
	}
	return m.createOver(ctx, rec, req)
}

// createOver creates the sandbox of one of this manager's records with the existing workspace. If it fails, record and
// workspace are unchanged.
func (m *Manager) createOver(ctx context.Context, rec record.Record, req Request) (*Session, error) {
	s := m.newSession(rec.Key, req, rec.ID)
	s.follow(rec, req)
	if had, known := decodeShape(rec.Request); known && req.Mode == OpenAsIs {
		made := req.shape()
		made.Env = had.Env // the values come with a full request
		s.made, s.asIs = made.encode(), true
	}
	info, err := m.make(ctx, s, req)
	if err != nil {
		return nil, engineError(err)
	}
	s.engine = info
	if had := custody.Workspace(rec); had.User != "" && !rec.WorkspaceOnly() {
		err = m.checkWorkspace(info, had)
	}
	if err == nil {
		err = m.begin(ctx, s, req)
	}
	if err != nil {
		s.control.Close()
		return nil, errors.Join(err, m.keeper.RemoveEngine(ctx, info.ID, false))
	}
	return s, nil
}
