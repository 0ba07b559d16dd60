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

// imageFile holds the file system of a workspace that has one of its own. It is mounted in the sandbox's mount
// namespace only, so that it is released with the sandbox's last process, whatever becomes of this one.
const imageFile = "disk.img"

func (d dirs) image(session string) string { return filepath.Join(d.workspace(session), imageFile) }

// chooseEnforcement returns how the limit of a session's workspace is enforced. One that was kept stays what it is.
func (b *driver) chooseEnforcement(ctx context.Context, session string) (backend.Enforcement, error) {
	if old, err := b.dirs.readOwner(session); err == nil && old.Size == 0 {
		return backend.WorkspaceWatched, nil
	} else if err == nil {
		return backend.WorkspaceSized, nil // what is wrong with it is told when it is mounted
	}
	enforcement, err := b.sizing.Enforcement(ctx)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("local: creating a workspace: %w", unavailable(err))
	}
	return enforcement, err
}

// unavailable returns an error of this machine with the class of those that may pass, unless it has one.
func unavailable(err error) error {
	if err = scrub(err); errors.Is(err, backend.ErrQuota) {
		return err
	}
	return fmt.Errorf("%w: %w", err, backend.ErrUnavailable)
}

func (b *driver) formatWorkspace(ctx context.Context, x *sandbox, file string) error {
	return sizedfs.Format(ctx, file, x.sizedSpec())
}

// sizedSpec describes a workspace's file system. Its root gets its owner when it is mounted.
func (r *record) sizedSpec() sizedfs.Spec {
	return sizedfs.Spec{Bytes: r.Sized(), Files: kit.Inodes(r.Sized())}
}

// mountSized mounts a workspace's file system over its directory, in the mount namespace of the sandbox's launcher,
// which takes it from there. Nothing of that shows on the host: mounts do not pass from a namespace of another user.
func (b *driver) mountSized(x *sandbox, launcher int) error {
	d, err := sizedfs.Attach(b.dirs.image(x.session()))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("local: the workspace's file system was removed from the state directory: %w", backend.ErrLost)
	}
	if err != nil {
		return fmt.Errorf("local: mounting the workspace: %w: %w", scrub(err), backend.ErrUnavailable)
	}
	defer d.Close() //nolint:errcheck // the mount keeps it
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", launcher))
	if err != nil {
		return fmt.Errorf("local: the sandbox's process exited during setup: %w: %w", scrub(err), backend.ErrLost)
	}
	defer ns.Close()
	if err := host.OnThread(func() error { return b.mountIn(int(ns.Fd()), d.Path, x) }); err != nil {
		return fmt.Errorf("local: mounting the workspace: %w: %w", scrub(err), backend.ErrUnavailable)
	}
	return nil
}

// mountIn enters a mount namespace with this thread, for good.
func (b *driver) mountIn(ns int, device string, x *sandbox) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // a thread that shares its root cannot leave
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
