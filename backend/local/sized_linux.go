package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
)

// imageFile contains the file system of a workspace with a size limit. It is mounted only in the sandbox's mount
// namespace. Therefore the kernel releases it with the sandbox's last process, even if this process has died.
const imageFile = "disk.img"

func (d dirs) image(session string) string { return filepath.Join(d.workspace(session), imageFile) }

// chooseEnforcement returns the enforcement of the workspace limit. An existing workspace keeps the same enforcement.
func (b *driver) chooseEnforcement(ctx context.Context, session string) (backend.Enforcement, error) {
	if old, err := b.dirs.readOwner(session); err == nil && old.Size == 0 {
		return backend.WorkspaceWatched, nil
	} else if err == nil {
		return backend.WorkspaceSized, nil // the mount reports problems with it
	}
	enforcement, err := b.sizing(ctx)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("local: creating a workspace: %w", unavailable(err))
	}
	return enforcement, err
}

// unavailable adds ErrUnavailable, the class of temporary failures, to an error of this host without a class.
func unavailable(err error) error {
	if err = host.Public(err); errors.Is(err, backend.ErrQuota) {
		return err
	}
	return fmt.Errorf("%w: %w", err, backend.ErrUnavailable)
}

// sizedSpec describes a workspace's file system. The mount sets the owner of the root directory.
func (r *record) sizedSpec() sizedfs.Spec {
	return sizedfs.Spec{Bytes: r.Sized(), Files: kit.Inodes(r.Sized())}
}

// mountSized enters the launcher's mount namespace and mounts a workspace's file system on the directory. The launcher
// moves the mount to the final place. The mount is not visible on the host, because mounts do not propagate from
// namespaces of other users.
func (b *driver) mountSized(x *sandbox, launcher int) error {
	d, err := sizedfs.Attach(b.dirs.image(x.session()))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("local: the workspace's file system was removed from the state directory: %w", backend.ErrLost)
	}
	if err != nil {
		return fmt.Errorf("local: mounting the workspace: %w: %w", host.Public(err), backend.ErrUnavailable)
	}
	defer d.Close() //nolint:errcheck // the mount keeps it
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", launcher))
	if err != nil {
		return fmt.Errorf("local: the sandbox's process exited during setup: %w: %w", host.Public(err), backend.ErrLost)
	}
	defer ns.Close()
	if err := host.OnThread(func() error { return b.mountIn(int(ns.Fd()), d.Name(), x) }); err != nil {
		return fmt.Errorf("local: mounting the workspace: %w: %w", host.Public(err), backend.ErrUnavailable)
	}
	return nil
}

// mountIn makes this thread enter a mount namespace permanently.
func (b *driver) mountIn(ns int, device string, x *sandbox) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // a thread with a shared root directory cannot enter a namespace
		return err
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
		return err
	}
	files := b.dirs.files(x.session())
	if err := unix.Mount(device, files, "ext4", unix.MS_NODEV|unix.MS_NOSUID, sizedfs.Options); err != nil {
		return err
	}
	return b.adoptFiles(x, files)
}
