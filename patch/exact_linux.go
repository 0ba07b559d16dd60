package patch

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// statExact describes the directory at a clean path without links. O_PATH needs no permission to list its parents.
func statExact(dir string) (os.FileInfo, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	start, rest := ".", dir
	if strings.HasPrefix(dir, "/") {
		start, rest = "/", dir[1:]
	}
	fd, err := unix.Open(start, flags, 0)
	for name := range strings.SplitSeq(rest, "/") {
		if err != nil {
			break
		}
		if name == "" { // the path is /
			continue
		}
		above := fd
		fd, err = unix.Openat(above, name, flags, 0)
		_ = unix.Close(above)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open without links", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	return f.Stat()
}
