package server

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// root is the directory that file requests stay in. os.Root walks every path component by component and refuses what
// leads out: "..", links and races with links.
type root struct {
	*os.Root
	workdir string
}

// openRoot opens the work directory, which must be a directory itself and not a link to one.
func openRoot(workdir string) (*root, error) {
	if !path.IsAbs(workdir) || path.Clean(workdir) != workdir {
		return nil, failf(wire.CodeInvalid, "the work directory %q is not a clean absolute path", workdir)
	}
	st, err := os.Lstat(workdir)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return nil, failf(wire.CodeInvalid, "the work directory %q is not a directory", workdir)
	}
	if st.Mode().Perm()&0o500 != 0o500 {
		if err := reopen(workdir); err != nil {
			return nil, failf(wire.CodePermission, "the work directory %q is closed to the sandbox's user: %v", workdir, err)
		}
	}
	r, err := os.OpenRoot(workdir)
	if err != nil {
		return nil, err
	}
	return &root{Root: r, workdir: workdir}, nil
}

// reopen opens to the guest's user a directory that a command of an earlier guest closed. It follows no link.
func reopen(dir string) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Uid != uint32(os.Getuid()) {
		return nil // of another user, who may let others in: opening it tells
	}
	return unix.Chmod(self(fd), st.Mode&0o7777|0o700)
}

func (r *root) close() error { return r.Root.Close() }

// rel turns a request's path into one below the root. "." is the root itself. An absolute path must lie below the work
// directory; ".." is resolved in the text, before any link is looked at. The verdict is the same for every request.
func (r *root) rel(p string) (string, error) {
	if strings.IndexByte(p, 0) >= 0 {
		return "", failf(wire.CodeInvalid, "the path holds a NUL byte")
	}
	if p == "" {
		return "", failf(wire.CodeInvalid, "the path is empty")
	}
	clean := path.Clean(p)
	if path.IsAbs(clean) {
		if clean == r.workdir || r.workdir == "/" && clean == "/" {
			return ".", nil
		}
		below, ok := strings.CutPrefix(clean, strings.TrimSuffix(r.workdir, "/")+"/")
		if !ok {
			return "", outside(p)
		}
		return below, nil
	}
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", outside(p)
	}
	return clean, nil
}

func outside(p string) *wire.Error {
	return failf(wire.CodePermission, "%s: outside the work directory", show(p))
}

// show makes a path fit for a message.
func show(p string) string {
	if len(p) > 200 {
		p = p[:200] + "…"
	}
	return strings.ToValidUTF8(p, "�")
}

// pathError gives the class of a failed file operation. p is the path as the host wrote it.
func pathError(err error, p string) error {
	var we *wire.Error
	if err == nil || errors.As(err, &we) {
		return err
	}
	p = show(p)
	var errno unix.Errno
	if !errors.As(err, &errno) {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			errno = unix.ENOENT
		case errors.Is(err, fs.ErrExist):
			errno = unix.EEXIST
		default:
			// os.Root says that a path leads out with an error of its own that has no number.
			return failf(wire.CodePermission, "%s: leads outside the work directory", p)
		}
	}
	switch errno {
	case unix.ENOENT:
		return failf(wire.CodeNotFound, "%s: no such file or directory", p)
	case unix.EEXIST, unix.ENOTEMPTY:
		return failf(wire.CodeExists, "%s: already exists", p)
	case unix.EACCES, unix.EPERM, unix.EROFS, unix.EXDEV:
		return failf(wire.CodePermission, "%s: %v", p, errno)
	case unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL, unix.ENXIO, unix.EILSEQ:
		return failf(wire.CodeInvalid, "%s: %v", p, errno)
	case unix.ENOSPC, unix.EDQUOT:
		return failf(wire.CodeQuota, "%s: %v", p, errno)
	case unix.EFBIG:
		return failf(wire.CodeTooLarge, "%s: larger than a file may get here", p)
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		return failf(wire.CodeCapacity, "%s: %v", p, errno)
	}
	return failf(wire.CodeInternal, "%s: %v", p, errno)
}

// fileInfo describes an entry.
func fileInfo(rel string, st *unix.Stat_t) wire.FileInfo {
	info := wire.FileInfo{Path: rel, Type: wire.TypeOther, Size: st.Size, Mode: st.Mode & 0o7777, ModTimeUnix: st.Mtim.Sec}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		info.Type = wire.TypeFile
	case unix.S_IFDIR:
		info.Type = wire.TypeDir
	case unix.S_IFLNK:
		info.Type = wire.TypeSymlink
	}
	if !utf8.ValidString(rel) {
		info.Path, info.PathRaw = strings.ToValidUTF8(rel, "�"), []byte(rel)
	}
	return info
}

// parent opens the directory that holds rel and gives the last part of the name. Operations on that one name, which
// follow no link, are then safe from whatever happens to the path.
func (r *root) parent(rel string) (*os.File, string, error) {
	dir, base := path.Split(rel)
	if dir == "" {
		dir = "."
	}
	f, err := r.OpenFile(path.Clean(dir), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, "", err
	}
	return f, base, nil
}

// lstat describes an entry without following it.
func (r *root) lstat(rel string) (wire.FileInfo, error) {
	var st unix.Stat_t
	if rel == "." {
		d, err := r.OpenFile(".", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return wire.FileInfo{}, err
		}
		defer d.Close()
		if err := unix.Fstat(int(d.Fd()), &st); err != nil {
			return wire.FileInfo{}, err
		}
		return fileInfo(rel, &st), nil
	}
	d, base, err := r.parent(rel)
	if err != nil {
		return wire.FileInfo{}, err
	}
	defer d.Close()
	if err := unix.Fstatat(int(d.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return wire.FileInfo{}, err
	}
	return fileInfo(rel, &st), nil
}

// gate bounds how many file operations run at a time: each may block a thread, and under a limit on processes there
// may be no more threads to be had.
type gate chan struct{}

func (g gate) do(f func() error) error {
	g <- struct{}{}
	defer func() { <-g }()
	return f()
}
