package sizedfs

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// A new file system leaves this much of the disk free, because the engine and the drivers' records need the space.
const (
	keptFree = 256 << 20
	keptPart = 50 // on a small disk, 1/50 of the disk's size
)

// Room returns ENOSPC if the disk of an open file has less free space than taken plus the reserve.
func Room(fd int, taken int64) error {
	var disk unix.Statfs_t
	if err := unix.Fstatfs(fd, &disk); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	size := func(blocks uint64) int64 { return int64(min(blocks, math.MaxInt64/uint64(disk.Bsize))) * disk.Bsize }
	free, kept := size(disk.Bavail), min(keptFree, size(disk.Blocks)/keptPart)
	if taken > free-kept {
		return fmt.Errorf("the disk has %d MiB free, %d must stay free, and %d are required: %w",
			free>>20, kept>>20, taken>>20, unix.ENOSPC)
	}
	return nil
}

// reserve reserves the disk space of the file system in f. It does not use the C library's posix_fallocate, which
// writes zeros if the disk's file system cannot reserve space. Other processes may reserve space at the same time, so
// reserve checks the free space afterwards.
func reserve(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	for {
		switch err := unix.Fallocate(int(f.Fd()), 0, 0, st.Size()); {
		case err == nil:
			return Room(int(f.Fd()), 0)
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("reserving %d MiB for the workspace: %w", st.Size()>>20, err)
		}
	}
}
