package sandbox

import (
	"context"
	"errors"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Snapshot saves the current files of the workspace under a name with 1 to 128 letters, digits, '_', '-', and '.'.
// While it copies the files, commands are frozen. If they cannot be frozen, the error wraps backend.ErrUnsupported.
// Data that commands have not written is not saved. Snapshots are deleted with the workspace. If the name is taken, the
// error wraps backend.ErrExists. If the sandbox already has backend.MaxSnapshots snapshots, the error wraps
// backend.ErrCapacity.
func (s *Sandbox) Snapshot(ctx context.Context, name string) (snap backend.Snapshot, err error) {
	err = s.withSnapshots(ctx, telemetry.SpanSnapshot, "Snapshot", func(ctx context.Context) error {
		snap, err = s.b.Snapshot(ctx, s.engine.ID, name)
		return err
	})
	return snap, err
}

// Snapshots returns the snapshots of the sandbox, oldest first, and the mechanism for the next snapshot.
func (s *Sandbox) Snapshots(ctx context.Context) (list []backend.Snapshot, m backend.SnapshotMechanism, err error) {
	err = s.withSnapshots(ctx, "", "Snapshots", func(ctx context.Context) error {
		list, m, err = s.b.Snapshots(ctx, s.engine.ID)
		return err
	})
	return list, m, err
}

// RemoveSnapshot deletes a snapshot. If the snapshot does not exist, RemoveSnapshot does nothing.
func (s *Sandbox) RemoveSnapshot(ctx context.Context, name string) error {
	return s.withSnapshots(ctx, "", "RemoveSnapshot", func(ctx context.Context) error {
		return s.b.RemoveSnapshot(ctx, s.engine.ID, name)
	})
}

// Rollback ends all commands and restores the workspace's files from a snapshot. A rollback that has started is
// completed even if ctx ends or this process dies. After a process has died, the next process to connect completes it.
// Files outside the workspace, for example in /tmp, are not changed.
func (s *Sandbox) Rollback(ctx context.Context, name string) error {
	return s.withSnapshots(ctx, telemetry.SpanRollback, "Rollback", func(ctx context.Context) error {
		err := s.b.Rollback(ctx, s.engine.ID, name)
		if err != nil && !errors.Is(err, backend.ErrNotFound) && !errors.Is(err, backend.ErrInvalid) {
			s.mu.Lock()
			conn := s.conn
			s.mu.Unlock()
			if conn != nil {
				conn.Close() // the next connection completes a started rollback or returns the error
			}
		}
		return err
	})
}

// withSnapshots runs a driver call as a call of the handle. If span is not empty, it starts a span with this name.
func (s *Sandbox) withSnapshots(ctx context.Context, span, op string, f func(context.Context) error) (err error) {
	defer func() { err = WrapError(op, s.b.Name(), s.o.ID, err) }()
	if span != "" {
		c, sp := s.start(ctx, span)
		ctx = c
		defer func() { telemetry.End(sp, err) }()
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return sanitize.EngineError(f(ctx))
}
