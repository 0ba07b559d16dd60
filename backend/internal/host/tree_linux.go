package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
)

// RenameNew renames a file or a directory. If the new name exists, RenameNew returns EEXIST.
func RenameNew(from, to string) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
}

// RemoveTree removes a directory with all contents, even if a sandbox tried to make this difficult, for example with
// 100,000 levels, modes without any access, or names with invalid text. RemoveTree does not follow links, and it stops
// at mount points. It empties one level at a time and moves deeper directories up to the top to avoid long paths and
// many open files. RemoveTree ignores files removed by another process at the same time.
func RemoveTree(ctx context.Context, dir string) error {
	top, err := openDir(unix.AT_FDCWD, dir, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing a tree: %w", err)
	}
	defer unix.Close(top)
	r := &remover{ctx: ctx, top: top}
	for {
		left, err := r.empty(top)
		if err == nil && !left {
			err = Ignore(unix.Rmdir(dir), unix.ENOENT)
			if err == nil {
				return nil
			}
		}
		if err != nil && !errors.Is(err, unix.ENOTEMPTY) { // another remover may have moved a directory into it
			return fmt.Errorf("removing a tree: %w", err)
		}
	}
}

type remover struct {
	ctx   context.Context
	top   int
	moved int // number for the name of the next directory at the top
}

// openDir opens a directory. It does not follow links.
func openDir(dirfd int, name string, resolve uint64) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat2(dirfd, name, &unix.OpenHow{Flags: flags, Resolve: resolve})
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.6; removal still stops at mount points
		return unix.Openat(dirfd, name, flags, 0)
	}
	if errors.Is(err, unix.EXDEV) {
		return -1, ErrMounted
	}
	return fd, err
}

// ErrMounted means that the removal of a tree stopped at a mount point.
var ErrMounted = fmt.Errorf("the directory contains a foreign mount; unmount it first: %w", backend.ErrUnavailable)

// batch is the number of entries to process between two checks of the context.
const batch = 512

// empty removes all entries from a directory. It empties and removes subdirectories of the top directory. It moves
// subdirectories of other directories to the top. It reports whether it found entries, because new entries may exist by
// now.
func (r *remover) empty(dirfd int) (left bool, err error) {
	fd, err := openDir(dirfd, ".", unix.RESOLVE_NO_XDEV)
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(fd), "dir")
	defer f.Close()
	for {
		if r.ctx.Err() != nil {
			return true, context.Cause(r.ctx)
		}
		names, err := f.Readdirnames(batch)
		for _, name := range names {
			left = true
			if err := r.remove(dirfd, name); err != nil {
				return true, err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrNotExist) { // another process removed the directory
			return left, nil
		}
		if err != nil {
			return left, err
		}
	}
}

// Chmod changes the mode of a directory entry. If a link has replaced the entry, Chmod does not change the link's
// target.
func Chmod(dirfd int, name string, mode uint32) error {
	fd, err := unix.Openat(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode), unix.Close(fd))
}

func (r *remover) remove(dirfd int, name string) error {
	for _, flags := range []int{0, unix.AT_REMOVEDIR} {
		switch err := unix.Unlinkat(dirfd, name, flags); {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EBUSY): // never unmount a foreign mount
			return ErrMounted
		case flags == 0 && !IsAny(err, unix.EISDIR, unix.EPERM):
			return err
		}
	}
	// An unprivileged user needs write permission on a directory to change or move it.
	if err := Chmod(dirfd, name, 0o700); err != nil {
		return Ignore(err, unix.ENOENT)
	}
	if dirfd != r.top {
		return r.lift(dirfd, name)
	}
	fd, err := openDir(dirfd, name, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return Ignore(err, unix.ENOENT)
	}
	_, err = r.empty(fd)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return err
	}
	// If the directory has new entries, the next pass removes it.
	return Ignore(unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR), unix.ENOENT, unix.ENOTEMPTY)
}

// lift moves a directory to the top.
func (r *remover) lift(dirfd int, name string) error {
	for {
		r.moved++
		err := unix.Renameat2(dirfd, name, r.top, fmt.Sprintf(".lifted-%d", r.moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return Ignore(err, unix.ENOENT)
		}
	}
}
