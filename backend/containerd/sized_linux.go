package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
)

// deviceLink is a symbolic link in a sandbox's directory to the loop device with its workspace. The runtime mounts the
// device only in the container's mount namespace. Therefore the kernel releases it with the sandbox's last process,
// even if this process has died.
const deviceLink = "workspace.dev"

// Enforcement returns the enforcement of workspace limits under the default runtime.
func (b *driver) Enforcement(ctx context.Context) (backend.Enforcement, error) {
	return b.enforcement(ctx, b.opts.OCIRuntime)
}

// enforcement returns the enforcement of workspace limits under a runtime. A runtime with its own mount call may ignore
// unknown mount options.
func (b *driver) enforcement(ctx context.Context, runtime string) (backend.Enforcement, error) {
	if !kernelNetwork(runtime) {
		return backend.WorkspaceWatched, nil
	}
	enforcement, err := b.sizing(ctx)
	return enforcement, b.calls.Settle(ctx, "inspect workspaces", stateError("create a workspace", err))
}

// chooseEnforcement selects the enforcement of the workspace limit. An existing workspace keeps the same enforcement.
func (b *driver) chooseEnforcement(ctx context.Context, p *plan, session sessionName) (err error) {
	tag, terr := b.state.readTag(session)
	switch kept := terr == nil && tag != (workspaceTag{}); {
	case kept && tag.Bytes == 0:
		p.enforcement = backend.WorkspaceWatched
	case kept && kernelNetwork(p.Spec.OCIRuntime):
		p.enforcement = backend.WorkspaceSized // the mount reports problems with it
	default:
		p.enforcement, err = b.enforcement(ctx, p.Spec.OCIRuntime)
	}
	return err
}

func (s stateDir) image(session sessionName) string {
	return filepath.Join(s.workspaces(session), "disk.img")
}

// newImage is the temporary name of a workspace's file system, until the workspace has a tag. A file system with the
// final name is always complete.
func (s stateDir) newImage(session sessionName) string { return s.image(session) + ".new" }

// finishImage renames a workspace's file system to the final name, unless this has been done.
func (r *record) finishImage() error {
	if r.config.Sized() == 0 {
		return nil
	}
	image := r.state().image(r.session)
	if host.Exists(image) {
		return nil
	}
	err := os.Rename(r.state().newImage(r.session), image)
	return stateError("create the workspace", kit.Ignore(err, os.ErrNotExist))
}

// formatWorkspace creates a workspace's file system under the temporary name, if the workspace needs one. An existing
// file with this name is incomplete and is replaced.
func (b *driver) formatWorkspace(ctx context.Context, r *record, user kit.User) error {
	if r.config.Sized() == 0 {
		return nil
	}
	file := r.state().newImage(r.session)
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return stateError("create the workspace", err)
	}
	if err := sizedfs.Format(ctx, file, r.sizedSpec(user)); err != nil {
		return stateError("create the workspace", err)
	}
	return stateError("create the workspace", host.Sync(file))
}

func (r *record) sizedSpec(user kit.User) sizedfs.Spec {
	size := r.config.Sized()
	return sizedfs.Spec{Bytes: size, Files: kit.Inodes(size), UID: int(user.UID), GID: int(user.GID)}
}

// attachWorkspace attaches a workspace's file system to a loop device. The runtime mounts the device. The caller must
// close the returned Closer afterwards.
func (r *record) attachWorkspace() (io.Closer, error) {
	if r.config.Sized() == 0 {
		return io.NopCloser(nil), nil
	}
	d, err := sizedfs.Attach(r.state().image(r.session))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("containerd: the workspace's file system was removed from the state directory: %w",
			backend.ErrLost)
	}
	if err != nil {
		return nil, stateError("mount the workspace", err)
	}
	link := r.state().file(r.id, deviceLink)
	_ = os.Remove(link + ".new") // left over from a dead process
	if err = os.Symlink(d.Name(), link+".new"); err == nil {
		err = os.Rename(link+".new", link)
	}
	if err != nil {
		return nil, errors.Join(stateError("mount the workspace", err), d.Close())
	}
	return d, nil
}
