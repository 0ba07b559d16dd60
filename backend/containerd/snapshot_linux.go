package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"

	apitask "github.com/containerd/containerd/api/types/task"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
)

// snapshots returns the location of a session's workspace.
func (s stateDir) snapshots(session sessionName, sized bool) *snapshots.Workspace {
	w := &snapshots.Workspace{Dir: s.workspaces(session), Files: s.workspace(session)}
	if sized {
		w.Image = s.image(session)
	}
	return w
}

// snapshots returns the location of a sandbox's workspace, and the processes if the sandbox is running.
func (b *driver) snapshots(ctx context.Context, r *record) (*snapshots.Workspace, error) {
	if !kernelNetwork(r.config.Runtime) {
		return nil, fmt.Errorf("containerd: snapshots are not supported with OCI runtime %s: %w",
			r.config.Runtime, backend.ErrUnsupported)
	}
	w := r.state().snapshots(r.session, r.config.Sized() > 0)
	p, err := b.task(ctx, r.id)
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		return nil, err
	}
	if s := p.GetStatus(); s == apitask.Status_RUNNING || s == apitask.Status_PAUSED {
		w.Processes = host.ProcessesOf(int(p.GetPid()), func(group string) bool { return group == r.id })
	}
	return w, nil
}

// origin returns the workspace of a snapshot if the sandbox may copy it.
func (*driver) origin(_ context.Context, r *record, from backend.ForkOf) (*snapshots.Workspace, error) {
	session := nameOf(from.SessionID)
	tag, err := r.state().readTag(session)
	if err != nil || !tag.is(r.labels[backend.LabelInstance], from.SessionID) {
		return nil, fmt.Errorf("containerd: snapshot %.80q: %w", from.Snapshot, snapshots.ErrNone)
	}
	if tag.Bytes != r.config.Sized() {
		return nil, fmt.Errorf("containerd: the snapshot's workspace has a different limit, %d bytes: %w",
			tag.Bytes, backend.ErrInvalid)
	}
	return r.state().snapshots(session, tag.Bytes > 0), nil
}

// forkFiles creates the files of a new workspace from a snapshot. The directory for the files must exist.
func (b *driver) forkFiles(ctx context.Context, r *record, user kit.User) error {
	state := r.state()
	origin, err := b.origin(ctx, r, *r.config.Fork)
	if err != nil {
		return err
	}
	files := state.workspace(r.session)
	to := snapshots.Target{Files: files}
	if r.config.Sized() > 0 {
		to.Image, to.Size = state.newImage(r.session), r.sizedSpec(user)
	} else {
		to.Files += ".new" // incomplete files are not in the workspace
		err = errors.Join(removeTree(ctx, to.Files), os.Mkdir(to.Files, 0o755),
			os.Chown(to.Files, int(user.UID), int(user.GID)))
	}
	if err != nil {
		return stateError("create the workspace", err)
	}
	if r.held, err = origin.Fork(ctx, r.config.Fork.Snapshot, to); err != nil {
		return fmt.Errorf("containerd: %w", err)
	}
	if to.Files == files {
		return nil
	}
	if err := os.Remove(files); err != nil { // the directory is empty
		return stateError("create the workspace", err)
	}
	return stateError("create the workspace", os.Rename(to.Files, files))
}

// waitForWorkspace waits for an operation on a sandbox's workspace, or completes an operation of a dead process.
func (b *driver) waitForWorkspace(ctx context.Context, id string) error {
	session, _, ok := namesOf(id)
	if !ok || !snapshots.Busy(b.state.workspaces(session)) {
		return nil
	}
	return snapshots.Waited(ctx, b.alone(ctx, id, func(r *record) error { return b.Recover(ctx, r) }))
}
