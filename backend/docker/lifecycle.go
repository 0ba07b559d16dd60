package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// containerIDs matches a full engine ID. The engine would also accept a prefix or a name, but sandboxes never use
// these.
var containerIDs = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (b *driver) inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	res, err := kit.Call(ctx, b.calls, "inspect container", kit.With(b.api.ContainerInspect, id))
	if err == nil && (res.ContainerJSONBase == nil || res.State == nil) {
		err = fmt.Errorf("docker: inspect container: the answer has no state: %w", backend.ErrUnavailable)
	}
	return res, err
}

func (b *driver) statPath(ctx context.Context, id, path string) (container.PathStat, error) {
	return kit.Call(ctx, b.calls, "inspect file", func(ctx context.Context) (container.PathStat, error) {
		return b.api.ContainerStatPath(ctx, id, path)
	})
}

// copyTo writes a tar archive to a directory of a container.
func (b *driver) copyTo(ctx context.Context, what, id, dir string, files io.Reader) error {
	return b.calls.Do(ctx, what, func(ctx context.Context) error {
		return b.api.CopyToContainer(ctx, id, dir, files, container.CopyToContainerOptions{})
	})
}

// own inspects a sandbox. It returns ErrNotFound if the container is not a sandbox of this driver.
func (b *driver) own(ctx context.Context, id string) (container.InspectResponse, error) {
	if !containerIDs.MatchString(id) {
		return container.InspectResponse{}, notFound(id)
	}
	res, err := b.inspect(ctx, id)
	other := err == nil && (res.ID != id || res.Config == nil || !isSandbox(res.Config.Labels, res.Name))
	if other || errors.Is(err, backend.ErrNotFound) {
		return res, notFound(id)
	}
	if err != nil {
		return res, err
	}
	b.workspaces.Store(id, workspaceName(res.Config.Labels[backend.LabelID]))
	return res, nil
}

func notFound(id string) error {
	return fmt.Errorf("docker: sandbox %.64q: %w", id, backend.ErrNotFound)
}

// Start starts a stopped sandbox.
func (b *driver) Start(ctx context.Context, id string) error {
	res, err := b.own(ctx, id)
	if err != nil {
		return err
	}
	if !res.State.Running {
		if err := errors.Join(b.Recover(ctx, res), b.awaitFork(ctx, res)); err != nil {
			return err
		}
		err := b.startContainer(ctx, id)
		if errors.Is(err, backend.ErrNotFound) && !b.isRemoved(ctx, id) {
			if describeContainer(res).Network == backend.NetworkBridge {
				err = b.rejoinNetwork(ctx, id)
			}
			if errors.Is(err, backend.ErrNotFound) { // must not look like a missing sandbox
				err = fmt.Errorf("docker: a resource of the sandbox was removed: %v: %w", err, backend.ErrUnavailable)
			}
		}
		if err != nil {
			return err
		}
		if res, err = b.own(ctx, id); err != nil {
			return err
		}
	}
	return b.guardNetwork(ctx, res)
}

// rejoinNetwork starts a sandbox whose network was removed, for example with docker network prune. The container refers
// to the ID of the removed network, even if a new network has the same name.
func (b *driver) rejoinNetwork(ctx context.Context, id string) error {
	if err := b.ensureNetwork(ctx); err != nil {
		return err
	}
	err := b.calls.Do(ctx, "disconnect network", func(ctx context.Context) error {
		return b.api.NetworkDisconnect(ctx, networkName, id, true)
	})
	if err == nil || kit.Unexplained(err) { // the container may already be disconnected
		err = b.calls.Do(ctx, "connect network", func(ctx context.Context) error {
			return b.api.NetworkConnect(ctx, networkName, id, nil)
		})
	}
	if err != nil {
		return err
	}
	return b.startContainer(ctx, id)
}

// Stop kills the processes of a sandbox.
func (b *driver) Stop(ctx context.Context, id string) error {
	res, err := b.own(ctx, id)
	if err != nil || !res.State.Running {
		return err
	}
	if err := b.Thaw(ctx, res); err != nil {
		return err
	}
	return b.stopContainer(ctx, id)
}

func (b *driver) stopContainer(ctx context.Context, id string) error {
	return b.calls.Do(ctx, "stop container", kit.Bind(b.api.ContainerStop, id, container.StopOptions{Timeout: new(0)}))
}

// Remove stops a sandbox and deletes it.
func (b *driver) Remove(ctx context.Context, id string, opts backend.RemoveOptions) error {
	res, err := b.own(ctx, id)
	if err == nil {
		err = b.Thaw(ctx, res)
	}
	if err == nil {
		err = b.removeContainer(ctx, id)
	}
	vanished := errors.Is(err, backend.ErrNotFound)
	if err != nil && !vanished {
		return err
	}
	workspace, known := b.workspaces.Load(id)
	if known && vanished {
		if err := b.removeTerminals(ctx, workspace.(volumeName)); err != nil {
			return err
		}
	}
	if known && opts.Volumes {
		if err := kit.Ignore(b.removeUnforked(ctx, workspace.(volumeName)), errReplaced); err != nil {
			return err
		}
	}
	b.workspaces.Delete(id)
	b.network.guarded.Delete(id)
	return nil
}

// HasWorkspace reports whether a session has a complete workspace.
func (b *driver) HasWorkspace(ctx context.Context, instance, sessionID string) (bool, error) {
	v, err := b.inspectVolume(ctx, workspaceName(sessionID))
	found := err == nil && sameOwner(v.Labels, instance, sessionID)
	if found {
		err = b.checkFork(ctx, v)
	}
	return found && err == nil, kit.Ignore(err, backend.ErrNotFound, errIncompleteFork)
}

// RemoveWorkspace deletes the workspace of a session without a container.
func (b *driver) RemoveWorkspace(ctx context.Context, instance, sessionID string) error {
	name := workspaceName(sessionID)
	v, err := b.inspectVolume(ctx, name)
	if errors.Is(err, backend.ErrNotFound) {
		return b.removeTerminals(ctx, name)
	}
	if err != nil {
		return err
	}
	if !sameOwner(v.Labels, instance, sessionID) {
		return fmt.Errorf("docker: volume %s belongs to another sandbox: %w", name, backend.ErrExists)
	}
	return errors.Join(b.removeTerminals(ctx, name), b.removeUnforked(ctx, name))
}

// removeContainer removes a running or stopped container and waits until it is removed. It also waits for a concurrent
// removal.
func (b *driver) removeContainer(ctx context.Context, id string) error {
	remove := kit.Bind(b.api.ContainerRemove, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	// A conflict is another removal or a start.
	return b.remove(ctx, "remove container", remove, func() error { return nil })
}

// remove calls f until the object is removed. If the object is in use, remove calls conflict before the next attempt.
// If conflict returns errInUse or errReplaced, remove returns it.
func (b *driver) remove(ctx context.Context, what string, f func(context.Context) error, conflict func() error) error {
	return b.calls.Retry(ctx, func() (bool, error) {
		err := b.calls.Do(ctx, what, f)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			return true, nil
		case errors.Is(err, backend.ErrExists):
			err = cmp.Or(conflict(), err)
			return errors.Is(err, errInUse) || errors.Is(err, errReplaced), err
		}
		return true, err
	})
}
