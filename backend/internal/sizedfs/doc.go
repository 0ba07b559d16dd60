// Package sizedfs makes file systems of a given size in ordinary files, for directories that must not grow beyond it.
//
// All that the file may take of its disk is set aside when it is made, so that what was written does not depend on what
// others do to the disk later: a write into a hole of a full disk is lost after it succeeded. If the disk's file system
// cannot reserve space, Format and Probe fail.
//
// It is mounted through a loop device that the kernel releases by itself when the last mount and the last descriptor of
// it are gone, so that nothing is left to clean up when a process dies, however it dies. Only Linux has it, and only
// root may use it.
package sizedfs

// Spec describes a file system.
type Spec struct {
	Bytes int64 // room for contents; less than 1 MiB becomes that
	Files int64 // files and directories
	UID   int   // owner of the root directory
	GID   int
}

// Options are those to mount it with, beside nosuid and nodev. A loop device makes holes in its file of what is
// discarded and of what is filled with zeros, and a hole has no room set aside: so what is deleted is not discarded,
// the tables are not zeroed, and neither are parts of files that were allocated and not written, which is how others
// than dioread_nolock write beside them.
const Options = "nodiscard,noinit_itable,dioread_nolock"
