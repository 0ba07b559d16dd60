package tools

import (
	"context"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/session"
)

// snapshot saves the files of the sandbox.
func (b *binding) snapshot(ctx context.Context, in snapshotInput) (out snapshotOutput, err error) {
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	if rules.IsRunSnapshot(in.Name) {
		return out, fmt.Errorf("%w: names like %.80q are reserved for snapshots of runs; choose another name",
			backend.ErrInvalid, in.Name)
	}
	if _, err := s.Snapshot(ctx, in.Name); err != nil {
		return out, err
	}
	return out.list(ctx, s)
}

// rollback restores the files of the sandbox from a snapshot.
func (b *binding) rollback(ctx context.Context, in rollbackInput) (out snapshotOutput, err error) {
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	if err := s.Rollback(ctx, in.Name); err != nil {
		return out, err
	}
	out.Note = fmt.Sprintf("/workspace is restored from %s, and no command is running.", in.Name)
	return out.list(ctx, s)
}

// list adds the names of the existing snapshots to the output.
func (o snapshotOutput) list(ctx context.Context, s *session.Session) (snapshotOutput, error) {
	list, _, err := s.Snapshots(ctx)
	o.OK, o.Snapshots = true, make([]string, 0, len(list))
	for _, snap := range list {
		o.Snapshots = append(o.Snapshots, snap.Name)
	}
	return o, err
}
