package patch

import (
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// statExact describes the directory at a clean path without links. O_PATH needs no permission to list the parents.
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

// lockDir locks an open directory. A writer waits for another process's cleanup, but with a limit, because another
// program may have the lock.
func lockDir(f *os.File, how int) bool {
	for range map[int]int{alone: 3, shared: 300}[how] {
		if unix.Flock(int(f.Fd()), how|unix.LOCK_NB) == nil {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// keepOwner gives f the owner and group of the file that it replaces, if the system permits it.
func keepOwner(f *os.File, replaced os.FileInfo) {
	st := replaced.Sys().(*syscall.Stat_t)
	_ = f.Chown(-1, int(st.Gid)) // a member of the group may do this
	_ = f.Chown(int(st.Uid), -1) // most users cannot do this
}
