package sandbox

import (
	"context"
	"errors"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Snapshot keeps the files of the work directory as they are under a name, of 1 to 128 letters, digits, '_', '-' and
// '.'. While it copies, commands are frozen; if they cannot be frozen, it fails with backend.ErrUnsupported. Data that
// a command has not written yet is not in it. Snapshots go with the workspace. A name that is taken is
// backend.ErrExists, one more than backend.MaxSnapshots backend.ErrCapacity.
func (s *Sandbox) Snapshot(ctx context.Context, name string) (snap backend.Snapshot, err error) {
	err = s.withSnapshots(ctx, telemetry.SpanSnapshot, "Snapshot", func(ctx context.Context) error {
		snap, err = s.b.Snapshot(ctx, s.engine.ID, name)
		return err
	})
	return snap, err
}

// Snapshots returns the snapshots of the sandbox, oldest first, and how the next one would be made.
func (s *Sandbox) Snapshots(ctx context.Context) (list []backend.Snapshot, m backend.SnapshotMechanism, err error) {
	err = s.withSnapshots(ctx, "", "Snapshots", func(ctx context.Context) error {
		list, m, err = s.b.Snapshots(ctx, s.engine.ID)
		return err
	})
	return list, m, err
}

// RemoveSnapshot deletes a snapshot. One that is not there is no error.
func (s *Sandbox) RemoveSnapshot(ctx context.Context, name string) error {
	return s.withSnapshots(ctx, "", "RemoveSnapshot", func(ctx context.Context) error {
		return s.b.RemoveSnapshot(ctx, s.engine.ID, name)
	})
}

// Rollback ends all commands and makes the files of the work directory what they were when the snapshot was made. It is
// brought to its end even if ctx ends, or this process: then by whoever reaches for the sandbox next. What lies
// elsewhere, as in /tmp, stays.
func (s *Sandbox) Rollback(ctx context.Context, name string) error {
	return s.withSnapshots(ctx, telemetry.SpanRollback, "Rollback", func(ctx context.Context) error {
		err := s.b.Rollback(ctx, s.engine.ID, name)
		if err != nil && !errors.Is(err, backend.ErrNotFound) && !errors.Is(err, backend.ErrInvalid) {
			s.mu.Lock()
			conn := s.conn
			s.mu.Unlock()
			if conn != nil {
				conn.Close() // who connects again ends what was begun, or hears why not
			}
		}
		return err
	})
}

// withSnapshots runs a call of the driver as one of the handle. A name begins a span.
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
