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

// Room checks that the disk of an open file has as much free as is to be taken, beside what is kept. One that has not
// is ENOSPC.
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

// reserve sets aside the space of the file system in f. It does not use the library's posix_fallocate, which writes
// zeros if the disk's file system cannot reserve space. Others may reserve at the same time, so it checks the room
// afterwards.
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
