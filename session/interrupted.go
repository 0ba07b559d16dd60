package session

import (
	"context"
	"errors"

	"github.com/workcell-dev/workcell/backend"
)

// A run whose process died may be resumed, but nobody knows when, and until then its sandbox is of no use: what the
// step under way was doing is done again. So it ends soon, and its workspace waits for as long as the sandbox would have.

// keepOnlyWorkspace ends the sandbox of an interrupted run and keeps its workspace, unless it was used since it was found.
// Where the workspace is not all of its files, or ends with it, it stays for its idle time. taken is the record found, which
// is this manager's now.
func (m *Manager) keepOnlyWorkspace(ctx context.Context, found, taken Record) error {
	after := taken // the record afterwards
	after.Owner = ""
	engine, _, err := m.find(ctx, taken.ID)
	switch {
	case taken.State != found.State || !taken.used().Equal(found.used()):
		after.Owner, err = found.Owner, nil // a later sweep's
	case errors.Is(err, backend.ErrNotFound):
		err = nil // the process that kept its workspace died after that, or something else removed it
	case err == nil && engine.Root != backend.RootWritable && m.canKeep(engine) == nil:
		after.KeepWorkspace, taken.KeepWorkspace = true, true
		if err = m.store.Update(ctx, taken); err == nil { // before the sandbox goes
			m.log.InfoContext(ctx, "ending the sandbox of an interrupted run, its workspace stays", "sandbox", taken.ID, "key", taken.Key.String())
			err = m.removeEngine(ctx, engine.ID, false)
		}
	}
	if err != nil {
		after.Owner = found.Owner // the next sweep tries again
	}
	m.save(after)
	return err
}

// hasWorkspace reports whether a workspace that was kept without its sandbox is there.
func (m *Manager) hasWorkspace(ctx context.Context, rec Record) (bool, error) {
	if !rec.workspaceOnly() {
		return false, nil
	}
	there, _, err := m.lookForWorkspace(ctx, rec.ID)
	return there, err
}

// lookForWorkspace reports whether the engine, which does not have a sandbox, has its workspace; known is false where nobody
// knows.
func (m *Manager) lookForWorkspace(ctx context.Context, id string) (there, known bool, err error) {
	k, ok := m.b.(backend.WorkspaceKeeper)
	if !ok {
		return false, false, nil
	}
	there, err = k.HasWorkspace(ctx, m.opts.Instance, id)
	if errors.Is(err, backend.ErrUnsupported) {
		return false, false, nil
	}
	return there, err == nil, engineError(err)
}

// isWorkspaceOnly is hasWorkspace for a sandbox that the engine does not have. Its record is read after that was seen:
// its workspace may have been kept just now.
func (m *Manager) isWorkspaceOnly(ctx context.Context, id string) (bool, error) {
	rec, err := m.store.Get(ctx, id)
	if errors.Is(err, backend.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return m.hasWorkspace(ctx, rec)
}

// recreateRun creates the sandbox of an interrupted run again upon its workspace; without a session and an error that is gone.
func (m *Manager) recreateRun(ctx context.Context, rec Record, req Request) (*Session, error) {
	there, err := m.hasWorkspace(ctx, rec)
	if !there || err != nil {
		return nil, err
	}
	if err := rec.gone(req); err != nil {
		return nil, err
	}
	m.log.WarnContext(ctx, "the run's sandbox had ended meanwhile and is recreated: its workspace is as it was, processes and other files are gone",
		"sandbox", rec.ID, "key", rec.Key.String())
	req.Prepare = nil // its files are there
	return m.recreate(ctx, rec, req)
}
