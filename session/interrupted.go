package session

import (
	"context"
	"errors"

	"github.com/workcell-dev/workcell/backend"
)

// A run whose process died may be resumed, but nobody knows when, and until then its sandbox is of no use: what the
// step under way was doing is done again. So it ends soon, and its workspace waits for as long as the sandbox would have.

// endInterrupted ends the sandbox of an interrupted run, whose record this manager took from the dead process's owner, and keeps
// its workspace. Where the workspace is not all of its files, or ends with it, it stays for its idle time.
func (m *Manager) endInterrupted(ctx context.Context, rec Record, from string) error {
	engine, _, err := m.find(ctx, rec.ID)
	switch {
	case errors.Is(err, backend.ErrNotFound): // the process that kept its workspace died after that, or something else removed it
		err = nil
	case err != nil:
		rec.Owner = from // the next sweep tries again
	case engine.Root != backend.RootWritable && m.canKeep(engine) == nil:
		m.log.InfoContext(ctx, "ending the sandbox of an interrupted run, its workspace stays", "sandbox", rec.ID, "key", rec.Key.String())
		kept := rec
		rec.Owner = from
		return m.removeKeeping(ctx, rec, kept, engine.ID)
	}
	if rec.Owner == m.owner {
		rec.Owner = ""
	}
	m.save(rec)
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
