package files

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/workcell-dev/workcell/internal/guest/disk"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// root is the parent directory of all paths of file requests. os.Root walks every path component by component. It
// rejects paths leading outside through "..", links, or races with links.
type root struct {
	*os.Root
	dir   string            // clean absolute path
	quota *disk.Quota       // limit of the workspace; may be nil
	fits  func(int64) error // reports an error if memory cannot hold this many bytes; nil for the workspace
}

// openRoot opens dir, which must be a directory and not a link.
func openRoot(dir string) (*root, error) {
	if !path.IsAbs(dir) || path.Clean(dir) != dir {
		return nil, wire.Errorf(wire.CodeInvalid, "the directory %q is not a clean absolute path", dir)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return nil, wire.Errorf(wire.CodeInvalid, "the directory %q is not a directory", dir)
	}
	if st.Mode().Perm()&0o500 != 0o500 {
		if err := reopen(dir); err != nil {
			return nil, wire.Errorf(wire.CodePermission, "the sandbox's user cannot access the directory %q: %v", dir, err)
		}
	}
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &root{Root: r, dir: dir}, nil
}

// reopen restores the permissions of the guest agent's user on a directory closed by a command of an earlier guest
// agent. It does not follow links.
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
		return nil // opening shows whether another owner allows access
	}
	return unix.Chmod(proc.FDPath(fd), st.Mode&0o7777|0o700)
}

// rel converts the path of a request to a path below the root. "." is the root. An absolute path must be inside the
// root. rel resolves ".." lexically, before any link. The result does not depend on the request type.
func (r *root) rel(p string) (string, error) {
	if strings.IndexByte(p, 0) >= 0 {
		return "", wire.Errorf(wire.CodeInvalid, "the path contains a NUL byte")
	}
	if p == "" {
		return "", wire.Errorf(wire.CodeInvalid, "the path is empty")
	}
	clean := path.Clean(p)
	if path.IsAbs(clean) {
		if clean == r.dir || r.dir == "/" && clean == "/" {
			return ".", nil
		}
		below, ok := strings.CutPrefix(clean, strings.TrimSuffix(r.dir, "/")+"/")
		if !ok {
			return "", r.outside(p)
		}
		return below, nil
	}
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", r.outside(p)
	}
	return clean, nil
}

func (r *root) outside(p string) *wire.Error {
	return wire.Errorf(wire.CodePermission, "%s: outside %s", show(p), r.dir)
}

// shown returns a path below the root in the form for responses.
func (r *root) shown(rel string) string {
	if r.fits != nil {
		return path.Join(r.dir, rel)
	}
	return rel
}

// reserve reserves space for a write until release is called.
func (r *root) reserve(size, files int64) (release func(), err error) {
	if r.fits != nil {
		return func() {}, r.fits(size)
	}
	return r.quota.Reserve(size, files)
}

// within calls op with a path below the root. os.Root rejects links to absolute paths. If op fails for this reason,
// within resolves the links and calls op again with the result. If links change concurrently, op may fail, but it
// cannot leave the root.
func (r *root) within(rel string, op func(rel string) error) error {
	err := op(rel)
	if !escapes(err) {
		return err
	}
	direct, err := r.follow(rel)
	if err == nil {
		err = op(direct)
	}
	if escapes(err) {
		return wire.Errorf(wire.CodePermission, "%s: a link leads outside %s", show(r.shown(rel)), r.dir)
	}
	return err
}

// errEscapes is the error for a path leading outside of the root.
var errEscapes = errors.New("path escapes from its root")

// escapes reports whether os.Root refused to follow a path. In this case, the error has no errno.
func escapes(err error) bool {
	return err != nil && !errors.As(err, new(unix.Errno)) && !errors.As(err, new(*wire.Error)) &&
		!errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist)
}

// follow returns the path below the root to which the links in rel lead, according to the kernel. The last components
// of rel need not exist. Only the name of the opened file is used, so the location does not matter.
func (r *root) follow(rel string) (string, error) {
	for at, rest := rel, "."; ; at, rest = path.Dir(at), path.Join(path.Base(at), rest) {
		fd, err := proc.OpenPath(path.Join(r.dir, at), 0)
		if err == nil {
			defer unix.Close(fd)
			return r.named(fd, rest)
		}
		if errors.Is(err, unix.ELOOP) {
			if _, err := os.Stat(path.Join(r.dir, at)); !errors.Is(err, unix.ELOOP) {
				return "", errEscapes // not a loop, but a path through /proc
			}
		}
		if !errors.Is(err, unix.ENOENT) || at == "." {
			return "", err
		}
		if target, err := os.Readlink(path.Join(r.dir, at)); err == nil { // a dangling link
			if _, err := r.rel(target); err != nil {
				return "", errEscapes
			}
			return "", unix.ENOENT
		}
	}
}

// named returns the path, below the root, of rest in the directory fd.
func (r *root) named(fd int, rest string) (string, error) {
	target, err := os.Readlink(proc.FDPath(fd))
	if err != nil {
		return "", err
	}
	below, err := r.rel(target)
	if err != nil {
		return "", errEscapes
	}
	return path.Join(below, rest), nil
}

// open opens a path below the root.
func (r *root) open(rel string, flags int) (f *os.File, err error) {
	err = r.within(rel, func(rel string) error {
		f, err = r.OpenFile(rel, flags, 0)
		return err
	})
	return f, err
}

// makeDirs creates a directory and the parents.
func (r *root) makeDirs(rel string, mode os.FileMode) error {
	return r.within(rel, func(rel string) error { return r.MkdirAll(rel, mode) })
}

// show formats a path for an error message.
func show(p string) string {
	if len(p) > 200 {
		p = p[:200] + "…"
	}
	return strings.ToValidUTF8(p, "�")
}

// pathError converts the error of a file operation to an error with a code. p is the path from the request.
func pathError(err error, p string) error {
	if err == nil || errors.As(err, new(*wire.Error)) {
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
			return wire.Errorf(wire.CodePermission, "%s: leads outside the directory of the file tools", p)
		}
	}
	switch errno {
	case unix.ENOENT:
		return wire.Errorf(wire.CodeNotFound, "%s: no such file or directory", p)
	case unix.EEXIST, unix.ENOTEMPTY:
		return wire.Errorf(wire.CodeExists, "%s: already exists", p)
	case unix.EACCES, unix.EPERM, unix.EROFS, unix.EXDEV:
		return wire.Errorf(wire.CodePermission, "%s: %v", p, errno)
	case unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL, unix.ENXIO, unix.EILSEQ:
		return wire.Errorf(wire.CodeInvalid, "%s: %v", p, errno)
	case unix.ENOSPC, unix.EDQUOT:
		return wire.Errorf(wire.CodeQuota, "%s: %v", p, errno)
	case unix.EFBIG:
		return wire.Errorf(wire.CodeTooLarge, "%s: file size limit exceeded", p)
	case unix.EAGAIN:
		return wire.Errorf(wire.CodeBusy, "%s: a process has a lease on the file", p)
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		return wire.Errorf(wire.CodeCapacity, "%s: %v", p, errno)
	}
	return wire.Errorf(wire.CodeInternal, "%s: %v", p, errno)
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
	return info
}

// parent opens the parent directory of rel and returns the last component of rel. Operations on this single name
// without following links are safe from concurrent changes of the path.
func (r *root) parent(rel string) (*os.File, string, error) {
	dir, base := path.Split(rel)
	f, err := r.open(path.Clean(dir), unix.O_PATH|unix.O_DIRECTORY)
	return f, base, err
}

// lstat describes an entry and does not follow links.
func (r *root) lstat(rel string) (wire.FileInfo, error) {
	d, base, err := r.parent(rel)
	if err != nil {
		return wire.FileInfo{}, err
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return wire.FileInfo{}, err
	}
	return fileInfo(r.shown(rel), &st), nil
}
