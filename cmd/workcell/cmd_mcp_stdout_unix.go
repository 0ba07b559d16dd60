//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// takeStdout returns a private copy of f, which no child process inherits, and makes f itself lead to other.
func takeStdout(f, other *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	own := os.NewFile(uintptr(fd), "standard output")
	if err := unix.Dup2(int(other.Fd()), int(f.Fd())); err != nil {
		own.Close() // nothing was written to it
		return nil, err
	}
	return own, nil
}
