package docker

import (
	"context"
	"errors"
	"fmt"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// workspaceMount returns a mount to create the workspace volume together with the sandbox's container. The container's
// name is the lock of the session. If several creations run concurrently, only the creation with the name creates a
// volume. An existing volume of the session is used again.
func (b *driver) workspaceMount(p *plan, nonce string) mount.Mount {
	labels := p.Labels(backend.RoleWorkspace)
	labels[labelNonce] = nonce
	if f := p.Spec.Fork; f != nil {
		labels[labelFork] = f.Snapshot
	}
	return mount.Mount{
		Type: mount.TypeVolume, Source: string(p.volume), Target: backend.Workdir,
		VolumeOptions: &mount.VolumeOptions{
			NoCopy: true, Labels: labels, DriverConfig: &mount.Driver{Name: "local"},
		},
	}
}

// claimWorkspace checks the workspace volume after the creation of the container. made reports whether the volume was
// created together with the container. If the volume is an incomplete fork, claimWorkspace returns errIncompleteFork.
// It returns another error if the volume does not belong to the session.
func (b *driver) claimWorkspace(ctx context.Context, p *plan, nonce string) (made bool, err error) {
	v, err := b.inspectVolume(ctx, p.volume)
	switch {
	case err != nil:
		return false, err
	case v.Labels[labelNonce] == nonce:
		return true, nil
	case !sameOwner(v.Labels, p.Spec.Instance, p.Spec.ID):
		return false, fmt.Errorf("docker: volume %s belongs to another sandbox: %w", p.volume, backend.ErrExists)
	}
	return false, b.checkFork(ctx, v)
}

// errIncompleteFork is the error for an incomplete fork whose creator died. The volume contains only files of the
// snapshot.
var errIncompleteFork = fmt.Errorf(
	"docker: the existing workspace of the sandbox is an incomplete fork of a snapshot: %w", backend.ErrLost)

func (b *driver) inspectVolume(ctx context.Context, name volumeName) (volume.Volume, error) {
	return kit.Call(ctx, b.calls, "inspect workspace", kit.With(b.api.VolumeInspect, string(name)))
}

func sameOwner(labels map[string]string, instance, id string) bool {
	return labels[backend.LabelRole] == backend.RoleWorkspace &&
		labels[backend.LabelInstance] == instance && labels[backend.LabelID] == id
}

// prepareWorkspace makes the sandbox's user the owner of an empty workspace. The API has no call for this, and copying
// files with it takes a third of a container's start time. Instead, prepareWorkspace uses a side effect: when the
// engine creates a container with an empty volume, it copies the image's directory and the directory's owner to the
// volume. The helper container is created from an image with such a directory and is never started. prepareWorkspace
// returns a function to remove the container.
func (b *driver) prepareWorkspace(ctx context.Context, p *plan) (remove func(context.Context) error, err error) {
	workspace := mount.Mount{Type: mount.TypeVolume, Source: string(p.volume), Target: backend.Workdir}
	id, err := b.createHelper(ctx, helper{owner: p.User, labels: p.Labels(backend.RoleInit), host: quietHost(workspace)})
	if id == "" {
		return nil, err
	}
	return func(ctx context.Context) error { return b.removeContainer(ctx, id) }, err
}

// removeWorkspace deletes a volume. It first removes the volume's helper containers.
func (b *driver) removeWorkspace(ctx context.Context, name volumeName) error {
	remove := kit.Bind(b.api.VolumeRemove, string(name), true)
	return b.remove(ctx, "remove workspace", remove, func() error { return b.removeInits(ctx, name) })
}

// removeTerminals removes the terminal volumes of a workspace's earlier containers, if these were removed without their
// volumes.
func (b *driver) removeTerminals(ctx context.Context, workspace volumeName) error {
	list, err := b.unusedVolumes(ctx, labelTerminals, string(workspace))
	for _, v := range list {
		err = errors.Join(err, b.removeWorkspace(ctx, volumeName(v.Name)))
	}
	return err
}

// unusedVolumes returns the unmounted volumes with this label.
func (b *driver) unusedVolumes(ctx context.Context, label, value string) ([]*volume.Volume, error) {
	unused := filters.NewArgs(filters.Arg("label", label+"="+value), filters.Arg("dangling", "true"))
	list, err := kit.Call(ctx, b.calls, "list volumes", kit.With(b.api.VolumeList, volume.ListOptions{Filters: unused}))
	return list.Volumes, err
}

// removeInits removes the helper containers of a volume. If another container uses the volume, removeInits returns
// errInUse, or errReplaced for a sandbox.
func (b *driver) removeInits(ctx context.Context, name volumeName) error {
	list, err := b.listContainers(ctx, filters.Arg("volume", string(name)))
	for _, c := range list {
		switch role := c.Labels[backend.LabelRole]; {
		case role == backend.RoleInit:
			if c.State != container.StateRunning {
				err = errors.Join(err, b.removeContainer(ctx, c.ID))
			}
		case role == backend.RoleSandbox && state(c.State) != backend.StateGone:
			err = errors.Join(err, errReplaced)
		case state(c.State) != backend.StateGone:
			err = errors.Join(err, errInUse)
		}
	}
	return err
}

// Errors for a volume of an existing container.
var (
	errInUse    = fmt.Errorf("docker: the workspace is in use: %w", backend.ErrExists)
	errReplaced = fmt.Errorf("docker: the workspace is in use by another sandbox: %w", backend.ErrExists)
)
