// Package sizedfs creates file systems of a fixed size in ordinary files, to limit the size of directories.
//
// When it creates the file, it reserves all disk space for the file. Without the reservation, other programs could fill
// the disk, and a write to a hole in the file would be lost after it succeeded. If the disk's file system cannot
// reserve space, Format and Probe fail.
//
// The file is mounted through a loop device. The kernel releases the device when the last mount and the last descriptor
// are closed. This requires no cleanup, even if the process is killed. The package requires Linux and root privileges.
package sizedfs

// Spec describes a file system.
type Spec struct {
	Bytes int64 // capacity for file contents; at least 1 MiB
	Files int64 // maximum number of files and directories
	UID   int   // owner of the root directory
	GID   int
}

// Options are the mount options, in addition to nosuid and nodev. Together they prevent holes in the file, because a
// hole has no reserved space. A loop device punches holes for discarded blocks and for blocks filled with zeros.
// nodiscard prevents discards of deleted data, and noinit_itable prevents zeroing of the inode tables. dioread_nolock
// prevents zeroing of allocated but unwritten blocks next to a write.
const Options = "nodiscard,noinit_itable,dioread_nolock"
