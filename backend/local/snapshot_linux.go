package local

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
)

// snapshots returns the location of a sandbox's workspace, and the processes if the sandbox is running.
func (b *driver) snapshots(x *sandbox) *snapshots.Workspace {
	w := b.dirs.snapshots(x.session(), x.Sized())
	w.Base = int64(x.IDs.Base)
	if p, ok := x.running(b.machine.boot); ok {
		w.Processes = host.ProcessesOf(p.PID, func(group string) bool {
			return groupNames.MatchString(group) && group == x.Group
		})
	}
	return w
}

// snapshots returns the location of a session's workspace.
func (d dirs) snapshots(session string, sized int64) *snapshots.Workspace {
	w := &snapshots.Workspace{Dir: d.workspace(session), Files: d.files(session)}
	if sized > 0 {
		w.Image = d.image(session)
	}
	return w
}

// snapshotMethods returns the driver's snapshot methods.
func (b *driver) snapshotMethods() snapshots.Methods[*sandbox] {
	return snapshots.Methods[*sandbox]{
		Driver: name, Origin: b.origin,
		Dir:       func(_ context.Context, x *sandbox) (string, error) { return b.dirs.workspace(x.session()), nil },
		Own:       func(_ context.Context, id string) (*sandbox, error) { return b.own(id) },
		Workspace: func(_ context.Context, x *sandbox) (*snapshots.Workspace, error) { return b.snapshots(x), nil },
		Hold: func(ctx context.Context, id string, f func(*sandbox) error) error {
			x, err := b.locked(ctx, id)
			if err != nil {
				return err
			}
			defer x.unlock()
			if !x.made() { // its creator died
				return notFound(id)
			}
			return f(x)
		},
	}
}

// settled waits for an operation on a sandbox's workspace, or completes it.
func (b *driver) settled(ctx context.Context, x *sandbox) error {
	if !snapshots.Busy(b.dirs.workspace(x.session())) {
		return nil
	}
	x, err := b.locked(ctx, x.id())
	if err == nil {
		defer x.unlock()
		err = b.Recover(ctx, x)
	}
	return snapshots.Waited(ctx, err)
}

// origin returns the workspace of a snapshot if the sandbox may copy it.
func (b *driver) origin(_ context.Context, x *sandbox, from backend.ForkOf) (*snapshots.Workspace, error) {
	w, err := b.dirs.readOwner(from.SessionID)
	if err != nil || w.Instance != x.instance() {
		return nil, fmt.Errorf("local: snapshot %.80q: %w", from.Snapshot, backend.ErrNotFound)
	}
	if w.Size != x.Sized() {
		return nil, fmt.Errorf("local: the snapshot's workspace has a different limit, %d bytes: %w",
			w.Size, backend.ErrInvalid)
	}
	return b.dirs.snapshots(from.SessionID, w.Size), nil
}

// forkFiles creates the files of a new workspace from a snapshot, in a separate directory.
func (b *driver) forkFiles(ctx context.Context, x *sandbox, dir string) error {
	origin, err := b.origin(ctx, x, *x.fork)
	if err != nil {
		return err
	}
	to := snapshots.Target{Files: filepath.Join(dir, "files"), Base: int64(x.IDs.Base)}
	if x.Sized() > 0 {
		to.Image, to.Size = filepath.Join(dir, imageFile), x.sizedSpec()
	}
	x.held, err = origin.Fork(ctx, x.fork.Snapshot, to)
	if err != nil && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("local: %w", host.Public(err))
	}
	return err
}
