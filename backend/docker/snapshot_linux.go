package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
)

// Snapshots are in the engine's directory for the workspace volume, next to the files, and are removed together with
// the volume. This process reads and writes the directory directly, so it must be root on the engine's host.

// volumeDir returns the engine's directory for a volume, if the engine is on this host.
func (b *driver) volumeDir(ctx context.Context, v volumeName) (string, error) {
	e, err := b.learn(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(e.root, "volumes", string(v)), nil
}

// snapshots returns the location of a workspace, or ErrUnsupported if this process cannot access it. If a volume with
// this unguessable name exists on this host, the engine is on this host.
func (b *driver) snapshots(ctx context.Context, v volumeName) (*snapshots.Workspace, error) {
	dir, err := b.volumeDir(ctx, v)
	if err != nil {
		return nil, err
	}
	w := &snapshots.Workspace{Dir: dir, Files: filepath.Join(dir, "_data")}
	if !host.Exists(w.Files) || !strings.HasPrefix(b.api.DaemonHost(), "unix://") || os.Geteuid() != 0 {
		return nil, noSnapshots("snapshots require access to the workspace; run as root on the engine's host, or use " +
			"local or containerd")
	}
	return w, nil
}

// noSnapshots returns the error for a workspace without support for snapshots.
func noSnapshots(reason string) error {
	return fmt.Errorf("docker: %s: %w", reason, backend.ErrUnsupported)
}

// sandboxSnapshots returns the location of a sandbox's workspace, and the processes if the sandbox is running.
func (b *driver) sandboxSnapshots(ctx context.Context, res container.InspectResponse) (*snapshots.Workspace, error) {
	if runtime := res.HostConfig.Runtime; !kernelNetwork(runtime) {
		return nil, noSnapshots("snapshots are not supported with OCI runtime " + runtime)
	}
	w, err := b.snapshots(ctx, workspaceName(res.Config.Labels[backend.LabelID]))
	if err == nil && res.State.Running {
		w.Processes = host.ProcessesOf(res.State.Pid, func(group string) bool { return strings.Contains(group, res.ID) })
		if !w.Processes.Seen {
			return nil, noSnapshots("cannot see the sandbox's processes to snapshot it; share the process namespace of the " +
				"engine's host")
		}
	}
	return w, err
}

// workspaceSnapshots implements the driver's snapshot methods.
type workspaceSnapshots = snapshots.Methods[container.InspectResponse]

func (b *driver) snapshotMethods() workspaceSnapshots {
	return workspaceSnapshots{
		Driver: "docker", Own: b.own, Workspace: b.sandboxSnapshots,
		Origin: func(ctx context.Context, res container.InspectResponse, from backend.ForkOf) (*snapshots.Workspace, error) {
			return b.origin(ctx, from, res.Config.Labels[backend.LabelInstance])
		},
		Dir: func(ctx context.Context, res container.InspectResponse) (string, error) {
			return b.volumeDir(ctx, workspaceName(res.Config.Labels[backend.LabelID]))
		},
	}
}

// removeUnforked removes a workspace when no fork or copy reads from it.
func (b *driver) removeUnforked(ctx context.Context, v volumeName) error {
	remove := func() error { return b.removeWorkspace(ctx, v) }
	w, err := b.snapshots(ctx, v)
	switch {
	case errors.Is(err, backend.ErrUnsupported): // this process also cannot copy from it
		return remove()
	case err != nil:
		return err
	}
	return snapshots.Alone(ctx, w.Dir, remove)
}

// forkedFile is a file in the directory of a volume. It marks the volume as a complete fork.
const forkedFile = "forked"

// checkFork returns errIncompleteFork if a volume is an incomplete fork. If this process cannot access the volume,
// checkFork returns nil, because this process also could not have created the fork.
func (b *driver) checkFork(ctx context.Context, v volume.Volume) error {
	if v.Labels[labelFork] == "" {
		return nil
	}
	w, err := b.snapshots(ctx, volumeName(v.Name))
	if err == nil && !host.Exists(filepath.Join(w.Dir, forkedFile)) {
		return errIncompleteFork
	}
	return kit.Ignore(err, backend.ErrUnsupported)
}

// awaitFork waits while a process copies the files of a snapshot to a sandbox's volume. If the copy is incomplete,
// awaitFork returns an error.
func (b *driver) awaitFork(ctx context.Context, res container.InspectResponse) error {
	v, err := b.inspectVolume(ctx, workspaceName(res.Config.Labels[backend.LabelID]))
	if errors.Is(err, backend.ErrNotFound) { // the start reports this error
		return nil
	}
	if err == nil {
		err = b.checkFork(ctx, v)
	}
	if !errors.Is(err, errIncompleteFork) {
		return err
	}
	dir, err := b.volumeDir(ctx, volumeName(v.Name))
	if err != nil {
		return err
	}
	return snapshots.Alone(ctx, dir, func() error { return b.checkFork(ctx, v) })
}

// origin returns the workspace of a snapshot, if the sandbox's instance owns it.
func (b *driver) origin(ctx context.Context, from backend.ForkOf, instance string) (*snapshots.Workspace, error) {
	name := workspaceName(from.SessionID)
	v, err := b.inspectVolume(ctx, name)
	if err != nil || !sameOwner(v.Labels, instance, from.SessionID) {
		return nil, fmt.Errorf("docker: snapshot %.80q: %w", from.Snapshot, snapshots.ErrNone)
	}
	return b.snapshots(ctx, name)
}

// forkFiles copies the files of a snapshot to a new workspace or an incomplete fork.
func (c *creation) forkFiles(ctx context.Context) error {
	from := *c.p.Spec.Fork
	origin, err := c.b.origin(ctx, from, c.p.Spec.Instance)
	if err != nil {
		return err
	}
	own, err := c.b.volumeDir(ctx, c.p.volume)
	if err != nil {
		return err
	}
	err = snapshots.Alone(ctx, own, func() error {
		if host.Exists(filepath.Join(own, forkedFile)) { // another process has completed the fork
			return nil
		}
		to := snapshots.Target{Files: filepath.Join(own, "_data")}
		_, err := origin.Fork(ctx, from.Snapshot, to) // a directory needs no closing
		if err == nil {
			err = os.WriteFile(filepath.Join(own, forkedFile), nil, 0o600)
		}
		if err == nil {
			err = host.Sync(own)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	return nil
}
