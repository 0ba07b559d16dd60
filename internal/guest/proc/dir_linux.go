package proc

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// checkDir reports whether a command may start in dir. It never falls back to another directory. It rejects directories
// reached through a descriptor or another process's root, and /proc itself. If a runtime leaks a descriptor of the
// host, such paths lead out of the sandbox (CVE-2024-21626).
func checkDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return launchFail(launchBadDir, "the directory %q is not absolute", dir)
	}
	fd, err := OpenPath(dir, unix.O_DIRECTORY)
	if err != nil {
		return dirError(err, dir)
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return dirError(err, dir)
	}
	if fs.Type == unix.PROC_SUPER_MAGIC {
		return launchFail(launchBadDir, "the directory %q is not allowed: it is in /proc", dir)
	}
	return dirError(unix.Access(dir, unix.X_OK), dir)
}

func dirError(err error, dir string) error {
	switch {
	case err == nil:
		return nil
	case isShortage(err):
		return shortage(err)
	case errors.Is(err, unix.ENOENT):
		return launchFail(launchBadDir, "the directory %q does not exist", dir)
	case errors.Is(err, unix.ENOTDIR):
		return launchFail(launchBadDir, "%q is not a directory", dir)
	case errors.Is(err, unix.EACCES):
		return launchFail(launchBadDir, "permission denied to enter the directory %q", dir)
	case errors.Is(err, unix.ELOOP):
		return launchFail(launchBadDir,
			"the directory %q is not allowed: it leads through too many links or through /proc", dir)
	}
	return launchFail(launchBadDir, "cannot use the directory %q: %v", dir, err)
}

// OpenPath opens name with O_PATH and does not follow magic links in /proc.
func OpenPath(name string, flags int) (int, error) {
	flags |= unix.O_PATH | unix.O_CLOEXEC
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{
		Flags:   uint64(flags),
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return fd, err
	}
	// The kernel is old, or a filter blocks openat2: follow the links here and reject links through /proc or /dev.
	if err := walkLinks(name, 0); err != nil {
		return -1, err
	}
	return unix.Open(name, flags, 0)
}

func walkLinks(dir string, depth int) error {
	if depth > 40 {
		return unix.ELOOP
	}
	at := "/"
	parts := strings.Split(filepath.Clean(dir), "/")
	for i, p := range parts {
		at = filepath.Join(at, p)
		if at == "/proc" || at == "/dev" {
			return unix.ELOOP
		}
		target, err := os.Readlink(at)
		if err != nil {
			continue // not a link, or missing, which open reports
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(at), target)
		}
		return walkLinks(filepath.Join(append([]string{target}, parts[i+1:]...)...), depth+1)
	}
	return nil
}

// FDPath returns a path to an open file, valid even if the file was moved.
func FDPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
