// Package sizedfs makes file systems of a given size in ordinary files, for directories that must not grow beyond it.
//
// The file is sparse: it takes what is in it. It is mounted through a loop device that the kernel releases by itself when
// the last mount and the last descriptor of it are gone, so that nothing is left to clean up when a process dies, however
// it dies. Only Linux has it, and only root may use it.
package sizedfs
