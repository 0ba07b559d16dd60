package transfer

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// openTemp returns a temp file in a directory below root. It has no name, and so is gone with this process unless linkTemp
// names it. Not every file system has such files.
func openTemp(root *os.Root, dir string) (*os.File, error) {
	f, err := root.OpenFile(dir, os.O_WRONLY|unix.O_TMPFILE, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(handle(f)); err != nil { // no /proc
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// linkTemp sets the name of the file below root, which must be free.
func linkTemp(root *os.Root, f *os.File, name string) error {
	dir, err := root.OpenFile(filepath.Dir(name), unix.O_PATH|unix.O_DIRECTORY, 0) // it need not be readable
	if err != nil {
		return err
	}
	defer dir.Close() // nothing was written to it
	err = unix.Linkat(unix.AT_FDCWD, handle(f), int(dir.Fd()), filepath.Base(name), unix.AT_SYMLINK_FOLLOW)
	return os.NewSyscallError("linkat", err)
}

// handle returns where a file of this process can be found without its name.
func handle(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }
