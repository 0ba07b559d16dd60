package sizedfs

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// A file system leaves so much of its disk free, for the engine and the records of sandboxes are written there, too.
const (
	keptFree = 256 << 20
	keptPart = 50 // of a small disk a 50th
)

// Room checks that the disk of an open file has as much free as is to be taken, beside what is kept. One that has not is ENOSPC.
func Room(fd int, taken int64) error {
	var disk unix.Statfs_t
	if err := unix.Fstatfs(fd, &disk); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	size := func(blocks uint64) int64 { return int64(min(blocks, math.MaxInt64/uint64(disk.Bsize))) * disk.Bsize }
	free, kept := size(disk.Bavail), min(keptFree, size(disk.Blocks)/keptPart)
	if taken > free-kept {
		return noRoom(taken, free, kept)
	}
	return nil
}

func noRoom(taken, free, kept int64) error {
	return fmt.Errorf("the disk has %d MiB free, %d must stay free, and %d are required: %w", free>>20, kept>>20, taken>>20, unix.ENOSPC)
}

// Reserve sets aside what the file system in f may take. Not the library's posix_fallocate, which writes zeros where the
// disk's file system cannot: there the file stays sparse. That others may reserve at the same time is looked at afterwards.
func Reserve(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	for {
		switch err := unix.Fallocate(int(f.Fd()), 0, 0, st.Size()); {
		case err == nil:
			return Room(int(f.Fd()), 0)
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return nil
		default:
			return fmt.Errorf("reserving %d MiB for the workspace: %w", st.Size()>>20, err)
		}
	}
}

const (
	magicBtrfs = 0x9123683e
	noCopy     = 0x800000 // FS_NOCOW_FL
)

// overwritten has Btrfs write the blocks of an empty file in place: what replaces a block needs room of its own otherwise.
func overwritten(f *os.File) {
	var disk unix.Statfs_t
	// The type has 32 bits, with a sign on some machines.
	if err := unix.Fstatfs(int(f.Fd()), &disk); err != nil || int64(disk.Type)&math.MaxUint32 != magicBtrfs { //nolint:unconvert // as above
		return
	}
	if flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS); err == nil {
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|noCopy) // else less is set aside
	}
}
