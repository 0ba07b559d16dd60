package snapshots

import (
	"context"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
)

// Methods implements the snapshot methods of a driver. Drivers embed it. R is the driver's record of a sandbox.
type Methods[R any] struct {
	Driver string // name of the driver
	Own    func(ctx context.Context, id string) (R, error)
	// Hold calls f and prevents a start or stop of the sandbox during the call. If nil, Methods uses Own.
	Hold func(ctx context.Context, id string, f func(R) error) error
	// Dir returns Workspace.Dir, even if Workspace fails.
	Dir       func(ctx context.Context, sandbox R) (string, error)
	Workspace func(ctx context.Context, sandbox R) (*Workspace, error)
	// Origin returns the workspace of a snapshot if the sandbox may have a copy.
	Origin func(ctx context.Context, sandbox R, from backend.ForkOf) (*Workspace, error)
}

func (m *Methods[R]) hold(ctx context.Context, id string, f func(*Workspace) error) error {
	held := func(r R) error {
		w, err := m.Workspace(ctx, r)
		if err != nil {
			return err
		}
		if err := f(w); err != nil {
			return fmt.Errorf("%s: %w", m.Driver, classed(err))
		}
		return nil
	}
	if m.Hold != nil {
		return m.Hold(ctx, id, held)
	}
	r, err := m.Own(ctx, id)
	if err != nil {
		return err
	}
	return held(r)
}

// Recover completes the operation of a dead process on the workspace of a sandbox. If the process is still running,
// Recover waits for it.
func (m *Methods[R]) Recover(ctx context.Context, sandbox R) error {
	return m.unfinished(ctx, sandbox, (*Workspace).Recover)
}

// Thaw resumes the processes of a sandbox to allow their exit.
func (m *Methods[R]) Thaw(ctx context.Context, sandbox R) error {
	return m.unfinished(ctx, sandbox, (*Workspace).Thaw)
}

func (m *Methods[R]) unfinished(ctx context.Context, sandbox R, f func(*Workspace, context.Context) error) error {
	dir, err := m.Dir(ctx, sandbox)
	if err != nil || !Busy(dir) {
		return err
	}
	w, err := m.Workspace(ctx, sandbox)
	if err != nil { // ErrUnsupported: a process with more privileges began the operation
		return host.Ignore(err, backend.ErrUnsupported)
	}
	if err := f(w, ctx); err != nil {
		return fmt.Errorf("%s: the workspace is only partly rolled back: %w", m.Driver, classed(err))
	}
	return nil
}

// Snapshot copies the files of a sandbox's workspace.
func (m *Methods[R]) Snapshot(ctx context.Context, id, name string) (s backend.Snapshot, err error) {
	err = m.hold(ctx, id, func(w *Workspace) error {
		if w.Processes.PID == 0 {
			return fmt.Errorf("the sandbox is not running: %w", backend.ErrLost)
		}
		s, err = w.Take(ctx, name)
		return err
	})
	return s, err
}

// Snapshots returns the snapshots of a sandbox.
func (m *Methods[R]) Snapshots(ctx context.Context, id string) ([]backend.Snapshot, backend.SnapshotMechanism, error) {
	r, err := m.Own(ctx, id)
	if err != nil {
		return nil, "", err
	}
	w, err := m.Workspace(ctx, r)
	if err != nil {
		return nil, "", err
	}
	return w.List()
}

// CopySnapshot copies a snapshot of another sandbox to a sandbox.
func (m *Methods[R]) CopySnapshot(ctx context.Context, id string, from backend.ForkOf) error {
	r, err := m.Own(ctx, id)
	if err != nil {
		return err
	}
	origin, err := m.Origin(ctx, r, from)
	if err != nil {
		return err
	}
	return m.hold(ctx, id, func(w *Workspace) error { return w.Copy(ctx, origin, from.Snapshot) })
}

// RemoveSnapshot deletes a snapshot.
func (m *Methods[R]) RemoveSnapshot(ctx context.Context, id, name string) error {
	return m.hold(ctx, id, func(w *Workspace) error { return w.Remove(ctx, name) })
}

// Rollback restores the workspace of a sandbox.
func (m *Methods[R]) Rollback(ctx context.Context, id, name string) error {
	return m.hold(ctx, id, func(w *Workspace) error { return w.Rollback(ctx, name) })
}
