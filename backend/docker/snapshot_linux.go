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
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
)

// Snapshots lie in the directory that the engine has for the workspace's volume, beside its files, and are removed with
// it. This process reads and writes there itself, so that it must be root on the engine's machine.

// volumeDir is where the engine keeps a volume, if it is on this machine.
func (b *driver) volumeDir(v volumeName) string {
	return filepath.Join(b.engine().root, "volumes", string(v))
}

// snapshots returns where a workspace lies, unless this process cannot reach it. That a volume of its name is there,
// which nobody guesses, says that the engine is this machine's.
func (b *driver) snapshots(v volumeName) (*snapshots.Workspace, error) {
	w := &snapshots.Workspace{Dir: b.volumeDir(v)}
	w.Files = filepath.Join(w.Dir, "_data")
	if _, err := os.Lstat(w.Files); err != nil || !strings.HasPrefix(b.api.DaemonHost(), "unix://") || os.Geteuid() != 0 {
		return nil, fmt.Errorf("docker: snapshots require access to the workspace; run as root on the engine's host, or use local or containerd: %w",
			backend.ErrUnsupported)
	}
	return w, nil
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// sandboxSnapshots returns where a sandbox's workspace lies, and its processes if it runs.
func (b *driver) sandboxSnapshots(_ context.Context, res container.InspectResponse) (*snapshots.Workspace, error) {
	if runtime := res.HostConfig.Runtime; !kernelNetwork(runtime) {
		return nil, fmt.Errorf("docker: snapshots are not supported with OCI runtime %s: %w", runtime, backend.ErrUnsupported)
	}
	w, err := b.snapshots(workspaceName(res.Config.Labels[backend.LabelID]))
	if err == nil && res.State.Running {
		w.Processes = host.ProcessesOf(res.State.Pid, func(group string) bool { return strings.Contains(group, res.ID) })
		if !w.Processes.Seen {
			return nil, fmt.Errorf("docker: cannot see the sandbox's processes to snapshot it; share the process namespace of the engine's host: %w",
				backend.ErrUnsupported)
		}
	}
	return w, err
}

// workspaceSnapshots are the driver's methods for snapshots.
type workspaceSnapshots = snapshots.Methods[container.InspectResponse]

func (b *driver) snapshotMethods() workspaceSnapshots {
	return workspaceSnapshots{
		Driver: "docker", Own: b.own, Workspace: b.sandboxSnapshots, Origin: b.sandboxOrigin,
		Dir: func(res container.InspectResponse) string {
			return b.volumeDir(workspaceName(res.Config.Labels[backend.LabelID]))
		},
	}
}

func (b *driver) sandboxOrigin(
	ctx context.Context, res container.InspectResponse, from backend.ForkOf,
) (*snapshots.Workspace, error) {
	return b.origin(ctx, from, res.Config.Labels[backend.LabelInstance])
}

// removeUnforked removes a workspace when nobody copies from it.
func (b *driver) removeUnforked(ctx context.Context, v volumeName) error {
	remove := func() error { return b.removeWorkspace(ctx, v) }
	if w, err := b.snapshots(v); err == nil {
		return snapshots.Alone(ctx, w.Dir, remove)
	}
	return remove() // this process cannot copy from it, either
}

// forkedFile lies in the directory of a volume that is a whole fork.
const forkedFile = "forked"

// half reports whether a volume was to be a fork and is not whole. Of a volume that this process cannot reach it cannot
// be told, as of one that it could not fork.
func (b *driver) half(v volume.Volume) bool {
	if v.Labels[labelFork] == "" {
		return false
	}
	w, err := b.snapshots(volumeName(v.Name))
	return err == nil && !exists(filepath.Join(w.Dir, forkedFile))
}

// whole waits for who fills a sandbox's volume with the files of a snapshot, and fails when that did not come to its
// end.
func (b *driver) whole(ctx context.Context, res container.InspectResponse) error {
	v, err := b.inspectVolume(ctx, workspaceName(res.Config.Labels[backend.LabelID]))
	if errors.Is(err, backend.ErrNotFound) { // the start says so
		return nil
	}
	if err == nil {
		_, err = b.learn(ctx) // where the engine keeps volumes
	}
	if err != nil || !b.half(v) {
		return err
	}
	return snapshots.Alone(ctx, b.volumeDir(volumeName(v.Name)), func() error {
		if b.half(v) {
			return errHalf
		}
		return nil
	})
}

// origin returns where the workspace of a snapshot lies that a sandbox of the instance may have.
func (b *driver) origin(ctx context.Context, from backend.ForkOf, instance string) (*snapshots.Workspace, error) {
	name := workspaceName(from.SessionID)
	v, err := b.inspectVolume(ctx, name)
	if err != nil || !sameOwner(v.Labels, instance, from.SessionID) {
		return nil, fmt.Errorf("docker: snapshot %.80q: %w", from.Snapshot, snapshots.ErrNone)
	}
	return b.snapshots(name)
}

// forkFiles makes the files of a workspace that was just made, or left half, of a snapshot.
func (c *creation) forkFiles(ctx context.Context) error {
	from := *c.p.Spec.Fork
	origin, err := c.b.origin(ctx, from, c.p.Spec.Instance)
	if err != nil {
		return err
	}
	own := c.b.volumeDir(c.p.volume)
	err = snapshots.Alone(ctx, own, func() error {
		if exists(filepath.Join(own, forkedFile)) { // another process was at it, and has done it
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
