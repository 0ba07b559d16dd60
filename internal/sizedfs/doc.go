// Package sizedfs makes file systems of a given size in ordinary files, for directories that must not grow beyond it.
//
// The file is sparse: it takes what is in it. It is mounted through a loop device that the kernel releases by itself when
// the last mount and the last descriptor of it are gone, so that nothing is left to clean up when a process dies, however
// it dies. Only Linux has it, and only root may use it.
package sizedfs

// Spec describes a file system.
type Spec struct {
	Bytes int64 // room for contents; less than 1 MiB becomes that
	Files int64 // files and directories
	UID   int   // owner of the root directory
	GID   int
	Mark  string // name of an empty file that it begins with, by which it is known again; empty for none
}

// Options are those to mount it with, beside nosuid and nodev: what is deleted is given back to the file, and tables that
// are holes are not written.
const Options = "discard,noinit_itable"
