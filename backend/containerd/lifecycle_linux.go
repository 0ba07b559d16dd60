package containerd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
)

// own returns a sandbox's record from containerd. It returns ErrNotFound if the ID does not belong to a sandbox of this
// driver.
func (b *driver) own(ctx context.Context, id string) (*record, error) {
	if _, container, ok := namesOf(id); ok {
		c, err := kit.Call(ctx, b.calls, "look for sandbox", kit.With(b.api.ContainerService().Get, container))
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return nil, err
		}
		if r, ok := readRecord(c); err == nil && ok && r.name() == id {
			b.known.Store(id, r)
			return r, nil
		}
	}
	b.known.Delete(id)
	return nil, fmt.Errorf("containerd: sandbox %.64q: %w", id, backend.ErrNotFound)
}

// running returns the process ID of a sandbox's main process, or an error if the sandbox is not running. For a known
// sandbox, it only reads the state of the task.
func (b *driver) running(ctx context.Context, id string) (*record, int, error) {
	var r *record
	if known, ok := b.known.Load(id); ok {
		r = known.(*record)
	} else if own, err := b.own(ctx, id); err == nil {
		r = own
	} else {
		return nil, 0, err
	}
	p, err := b.task(ctx, r.id)
	if errors.Is(err, backend.ErrNotFound) {
		_, err = b.own(ctx, id)
	}
	if err != nil {
		return nil, 0, err
	}
	if s := r.stateOf(p); s != backend.StateRunning {
		return nil, 0, fmt.Errorf("containerd: the sandbox is %s: %w", s, backend.ErrLost)
	}
	return r, int(p.GetPid()), nil
}

// Start starts a stopped sandbox.
func (b *driver) Start(ctx context.Context, id string) error {
	r, err := b.own(ctx, id)
	if err != nil {
		return err
	}
	if err := b.settled(ctx, r); err != nil {
		return err
	}
	return b.alone(ctx, id, func(r *record) error {
		p, err := b.task(ctx, r.id)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return err
		}
		switch r.stateOf(p) {
		case backend.StateRunning:
			return nil
		case backend.StatePaused:
			return fmt.Errorf("containerd: the sandbox is paused: %w", backend.ErrUnavailable)
		}
		return b.restart(ctx, r)
	})
}

// settled waits for a while because another process may be creating the sandbox.
func (b *driver) settled(ctx context.Context, r *record) error {
	deadline := time.Now().Add(staleWait)
	return b.calls.Retry(ctx, func() (bool, error) {
		p, err := b.task(ctx, r.id)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return true, err
		}
		return r.stateOf(p) != backend.StateCreated || time.Now().After(deadline), nil
	})
}

// restart creates the missing objects of a stopped sandbox and starts it.
func (b *driver) restart(ctx context.Context, r *record) error {
	if err := b.deleteTask(ctx, r); err != nil { // the task of an exited main process
		return err
	}
	if err := b.Recover(ctx, r); err != nil {
		return err
	}
	if err := b.installGuest(r.config.Runtime); err != nil {
		return err
	}
	defer r.letGo()
	mounts, _, err := b.materialize(ctx, r)
	if errors.Is(err, snapshots.ErrNone) {
		return fmt.Errorf("containerd: the forked workspace of the sandbox is missing: %w", backend.ErrLost)
	}
	if err == nil {
		err = b.startTask(ctx, r, mounts, true)
	}
	if err == nil || errors.Is(err, errStarted) {
		return nil
	}
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kit.CleanupTimeout)
	defer cancel()
	return errors.Join(b.outlive(ctx, err), b.deleteTask(cctx, r))
}

// Stop kills the processes of a sandbox.
func (b *driver) Stop(ctx context.Context, id string) error {
	return b.alone(ctx, id, func(r *record) error { return b.deleteTask(ctx, r) })
}

// Remove stops a sandbox and deletes it.
func (b *driver) Remove(ctx context.Context, id string, opts backend.RemoveOptions) error {
	session, container, ok := namesOf(id)
	if !ok {
		return nil
	}
	err := b.alone(ctx, id, func(r *record) error { return b.destroy(ctx, r, opts.Volumes) })
	if errors.Is(err, backend.ErrNotFound) {
		return b.removeRemains(ctx, session, container, opts.Volumes)
	}
	return err
}

// removeRemains deletes the objects of a sandbox whose record another program deleted. It does not touch the objects of
// other sandboxes of the session.
func (b *driver) removeRemains(ctx context.Context, session sessionName, container string, workspace bool) error {
	unlock, err := b.lock(ctx, session)
	if err != nil {
		return err
	}
	defer unlock()
	others, err := b.others(ctx, session, nil)
	if err != nil {
		return err
	}
	var errs []error
	if !slices.ContainsFunc(others, func(r *record) bool { return r.id == container }) {
		b.removeCgroup(b.cgroupPath(container))
		errs = append(errs, b.leaveNetwork(ctx, b.state, container), deleteNetns(b.state.loopback(container)),
			removeTree(ctx, b.state.sandbox(container)))
	}
	if workspace && len(others) == 0 {
		errs = append(errs, removeWorkspace(ctx, b.state.workspaces(session)))
	}
	return b.calls.Settle(ctx, "remove files", errors.Join(errs...))
}

// HasWorkspace reports whether a session has a workspace.
func (b *driver) HasWorkspace(_ context.Context, instance, sessionID string) (bool, error) {
	tag, err := b.state.readTag(nameOf(sessionID))
	return err == nil && tag.is(instance, sessionID), err
}

// RemoveWorkspace deletes the workspace of a session without a container.
func (b *driver) RemoveWorkspace(ctx context.Context, instance, sessionID string) error {
	session := nameOf(sessionID)
	unlock, err := b.lock(ctx, session)
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.only(ctx, session, nil); err != nil {
		return err
	}
	tag, err := b.state.readTag(session)
	if err == nil && tag != (workspaceTag{}) && !tag.is(instance, sessionID) {
		err = errStrange
	}
	if err != nil {
		return err
	}
	return b.calls.Settle(ctx, "remove files", removeWorkspace(ctx, b.state.workspaces(session)))
}

// destroy deletes all objects of a sandbox. It deletes the record last to allow another attempt after a failure.
func (b *driver) destroy(ctx context.Context, r *record, workspace bool) error {
	if err := b.deleteTask(ctx, r); err != nil {
		return err
	}
	started := r.started()
	if r.bridged() {
		if err := b.leaveNetwork(ctx, r.state(), r.id); err != nil {
			return err
		}
	}
	if err := deleteNetns(r.state().loopback(r.id)); err != nil {
		return err
	}
	b.removeCgroup(r.config.Cgroup)
	err := b.calls.Do(ctx, "remove snapshot", func(ctx context.Context) error {
		return b.api.SnapshotService(r.snapshotter).Remove(ctx, r.id)
	})
	if err = kit.Ignore(err, backend.ErrNotFound); err != nil {
		return err
	}
	if err := b.removeFiles(ctx, r, workspace); err != nil {
		return b.calls.Settle(ctx, "remove files", err)
	}
	err = b.calls.Do(ctx, "remove container", func(ctx context.Context) error {
		return b.api.ContainerService().Delete(ctx, r.id)
	})
	if err = kit.Ignore(err, backend.ErrNotFound); err != nil {
		return err
	}
	b.known.Delete(r.name())
	if r.config.Root == backend.RootWritable || !started { // the layer may be large or may still be in creation
		b.calls.Background(ctx, b.collect)
	}
	return nil
}

// removeFiles deletes a sandbox's directory. If workspace is set and no other sandbox uses the session's workspace,
// removeFiles also deletes the workspace.
func (b *driver) removeFiles(ctx context.Context, r *record, workspace bool) error {
	if workspace {
		others, err := b.others(ctx, r.session, r)
		if err != nil {
			return err
		}
		if len(others) == 0 {
			err = removeWorkspace(ctx, r.state().workspaces(r.session))
		}
		if err != nil {
			return err
		}
	}
	return removeTree(ctx, r.state().sandbox(r.id))
}

// removeWorkspace deletes the directory of a workspace.
func removeWorkspace(ctx context.Context, dir string) error {
	return snapshots.Alone(ctx, dir, func() error { return removeTree(ctx, dir) })
}
