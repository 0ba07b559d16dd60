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

// deviceLink leads from a sandbox's directory to the loop device that holds its workspace. The runtime mounts that in
// the container's mount namespace only, so that it is released with the sandbox's last process, whatever becomes of
// this one.
const deviceLink = "workspace.dev"

// Enforcement returns what can hold the limit of a workspace under the default runtime.
func (b *driver) Enforcement(ctx context.Context) (backend.Enforcement, error) {
	return b.enforcement(ctx, b.opts.OCIRuntime)
}

// enforcement is what holds the limit of a workspace under a runtime. One that does not leave mounting to the kernel
// may pass over what it does not know.
func (b *driver) enforcement(ctx context.Context, runtime string) (backend.Enforcement, error) {
	if !kernelNetwork(runtime) {
		return backend.WorkspaceWatched, nil
	}
	enforcement, err := b.sizing.Enforcement(ctx)
	return enforcement, b.settle(ctx, "inspect workspaces", stateError("create a workspace", err))
}

// chooseEnforcement chooses how the workspace's limit is enforced. A workspace that was kept stays what it is.
func (b *driver) chooseEnforcement(ctx context.Context, p *plan, session string) (err error) {
	tag, terr := b.state.readTag(session)
	switch kept := terr == nil && tag != (workspaceTag{}); {
	case kept && tag.Bytes == 0:
		p.enforcement = backend.WorkspaceWatched
	case kept && kernelNetwork(p.Spec.OCIRuntime):
		p.enforcement = backend.WorkspaceSized // what is wrong with it is told when it is mounted
	default:
		p.enforcement, err = b.enforcement(ctx, p.Spec.OCIRuntime)
	}
	return err
}

func (s stateDir) image(session string) string {
	return filepath.Join(s.workspaces(session), "disk.img")
}

// newImage is what a workspace's file system is called until the workspace has its tag: one that has its own name is
// never taken for half made.
func (s stateDir) newImage(session string) string { return s.image(session) + ".new" }

// finishImage renames a workspace's file system to its final name, unless it has that.
func (r *record) finishImage() error {
	if r.config.Sized() == 0 {
		return nil
	}
	image := r.state().image(r.session)
	if _, err := os.Lstat(image); err == nil {
		return nil
	}
	err := os.Rename(r.state().newImage(r.session), image)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return stateError("create the workspace", err)
}

// formatWorkspace makes a workspace's file system if it is to have one, under its first name. What is there of it is
// half made.
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

// attachWorkspace attaches a workspace's file system to a loop device for the runtime to mount, which must be closed
// then.
func (r *record) attachWorkspace() (io.Closer, error) {
	if r.config.Sized() == 0 {
		return io.NopCloser(nil), nil
	}
	d, err := sizedfs.Attach(r.state().image(r.session))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("containerd: the workspace's file system was removed from the state directory: %w", backend.ErrLost)
	}
	if err != nil {
		return nil, stateError("mount the workspace", err)
	}
	link := r.state().file(r.id, deviceLink)
	_ = os.Remove(link + ".new") // of a process that died
	if err = os.Symlink(d.Path, link+".new"); err == nil {
		err = os.Rename(link+".new", link)
	}
	if err != nil {
		return nil, errors.Join(stateError("mount the workspace", err), d.Close())
	}
	return d, nil
}
