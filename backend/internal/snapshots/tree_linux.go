package snapshots

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
)

const (
	// maxDepth is the maximum nesting depth of directories in a workspace. The copy opens up to three directories for each
	// level at the same time.
	maxDepth = 1000
	// workers is the number of concurrently copied files.
	workers = 4
	// settled is the minimum age of a file's last change. If the change is older, a later change would have a different
	// time. File system clocks have a coarse resolution, and settled is much larger than their step.
	settled = 50 * time.Millisecond
	// tick is the maximum step of file system clocks.
	tick = 10 * time.Millisecond
)

// mirror makes the target tree equal to the source tree. A sandbox may control both trees, so mirror does not follow
// links. It refuses entries other than files, directories, links, pipes, and sockets. No other process may change the
// target during the copy.
type mirror struct {
	ctx context.Context
	// shift is added to the IDs of the owners in the target.
	shift int64
	// same reports whether the file in the target is an unchanged copy of the source file. If nil, all files are copied.
	same func(src file, dst *unix.Stat_t) bool
	// made is called for every created file in the target.
	made func(src, dst file) error
	// fromKept and toKept mark the source or the target as a snapshot. The modes of the files can be stored in keptMode.
	fromKept, toKept bool

	// keepFree keeps a part of the host's disk free, because the target uses space of this disk.
	keepFree bool

	prevMarked time.Time // see since

	noClone atomic.Bool // the file system cannot share blocks
	links   map[inode]string
	linked  int              // size of the paths in links, in bytes
	modes   map[inode]uint32 // original modes of directories made accessible by enter
}

type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode {
	return inode{uint64(st.Dev), st.Ino} //nolint:unconvert // the type differs between architectures
}

// file is a file of a tree with the metadata.
type file struct {
	fd int
	st *unix.Stat_t
}

// run makes the directory dst equal to src.
func (m *mirror) run(src, dst int) error { return m.since(-1, time.Time{}, src, dst) }

// since is like run, for a copy next to an earlier copy prev, whose marks were set at the time marked. For files
// unchanged since prev, it creates hard links to the files of prev. Neither copy may be modified afterwards.
func (m *mirror) since(prev int, marked time.Time, src, dst int) error {
	m.links, m.prevMarked = map[inode]string{}, marked
	return m.dir(src, &level{dst: dst, top: dst, prev: prev})
}

// level is an incomplete directory of the target.
type level struct {
	dst   int
	prev  int    // same directory in an earlier copy, or -1
	top   int    // root of the target
	path  string // path below top, with a trailing slash
	depth int
	fresh bool // just created and empty
}

// dir makes one directory equal to another and then sets the attributes.
func (m *mirror) dir(src int, l *level) error {
	if l.depth > maxDepth {
		return fmt.Errorf("the workspace has directories %d levels deep: %w", l.depth, backend.ErrTooLarge)
	}
	if m.ctx.Err() != nil {
		return context.Cause(m.ctx)
	}
	names, err := list(src)
	if err != nil {
		return err
	}
	if !l.fresh {
		if err := m.prune(src, l.dst, names); err != nil {
			return err
		}
	}
	var dirs []string
	var links []func() error
	files := errgroup.Group{}
	files.SetLimit(workers)
	for _, name := range names {
		st, err := stat(src, name)
		if errors.Is(err, unix.ENOENT) { // a command removed it during the copy
			continue
		}
		if err != nil {
			return errors.Join(err, files.Wait())
		}
		first, ok, err := m.first(l, name, st)
		switch {
		case err != nil:
			return errors.Join(err, files.Wait())
		case isDir(st):
			dirs = append(dirs, name)
		case ok:
			links = append(links, func() error { return m.link(src, first, l, name) })
		case st.Mode&unix.S_IFMT == unix.S_IFREG:
			files.Go(func() error { return m.regular(src, l, name) })
		default:
			if err := m.entry(src, l, name, st); err != nil {
				return errors.Join(err, files.Wait())
			}
		}
	}
	if err := files.Wait(); err != nil {
		return err
	}
	for _, link := range links { // after all linked files exist
		if err := link(); err != nil {
			return err
		}
	}
	for _, name := range dirs {
		if err := m.below(src, l, name); err != nil {
			return err
		}
	}
	return m.attributes(src, l.dst)
}

// below copies a subdirectory.
func (m *mirror) below(src int, l *level, name string) (err error) {
	from, leave, err := m.enter(src, name)
	if err != nil { // perhaps a command replaced it
		return host.Ignore(err, unix.ENOENT, unix.ENOTDIR, unix.ELOOP)
	}
	defer func() { err = errors.Join(err, leave()) }()
	made := unix.Mkdirat(l.dst, name, 0o700)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return made
	}
	to, _, err := m.enter(l.dst, name) // the final mode is set last
	if err != nil {
		return err
	}
	defer unix.Close(to)
	prev := -1
	if l.prev >= 0 {
		prev, err = unix.Openat(l.prev, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(prev)
		}
	}
	return m.dir(from, &level{to, prev, l.top, l.path + name + "/", l.depth + 1, made == nil})
}

// prune removes the entries of the target directory if they are missing in the source or have another type there.
func (m *mirror) prune(src, dst int, keep []string) error {
	wanted := make(map[string]bool, len(keep))
	for _, name := range keep {
		wanted[name] = true
	}
	names, err := list(dst)
	if err != nil {
		return err
	}
	for _, name := range names {
		have, err := stat(dst, name)
		if err != nil {
			return err
		}
		if wanted[name] {
			want, err := stat(src, name)
			if err != nil {
				return err
			}
			if isDir(have) == isDir(want) { // other differences are handled later
				continue
			}
		}
		if err := m.remove(dst, name); err != nil {
			return err
		}
	}
	return nil
}

// back is like run, even if the target is full. If the space is not sufficient, back removes all files of the target
// and tries again.
func (m *mirror) back(src, dst int) error {
	noRoom := func(err error) bool { return host.IsAny(err, unix.ENOSPC, unix.EDQUOT) }
	if err := m.run(src, dst); !noRoom(err) {
		return err
	}
	if err := m.prune(src, dst, nil); err != nil {
		return err
	}
	// The file system reuses freed blocks only after a sync to the disk, sometimes a moment later.
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		_ = unix.Syncfs(dst) // run reports the error
		if err := m.run(src, dst); !noRoom(err) || time.Since(begin) > 2*time.Second {
			return err
		}
	}
}

// remove removes an entry of any type. A missing entry is not an error.
func (m *mirror) remove(dst int, name string) error {
	st, err := stat(dst, name)
	switch {
	case err != nil:
		return host.Ignore(err, unix.ENOENT)
	case isDir(st):
		return removeTree(m.ctx, dst, name)
	}
	return unix.Unlinkat(dst, name, 0)
}

// regular copies a file with a single name, unless the target already has the file.
func (m *mirror) regular(src int, l *level, name string) error {
	fd, err := openFile(src, name)
	if err != nil { // perhaps a command replaced it
		return host.Ignore(err, unix.ENOENT, unix.ELOOP, unix.ENXIO)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil // a command replaced it
	}
	if !l.fresh {
		if kept, err := m.keeps(file{fd, &st}, l.dst, name); kept || err != nil {
			return err
		}
	}
	if m.unchanged(&st, l, name) && unix.Linkat(l.prev, name, l.dst, name, 0) == nil { // if linking fails, copy
		return nil
	}
	return m.create(file{fd, &st}, l.dst, name)
}

// keeps reports whether the target already has the file. Otherwise it removes the existing entry with this name.
func (m *mirror) keeps(src file, dst int, name string) (bool, error) {
	have, err := stat(dst, name)
	if err != nil {
		return false, host.Ignore(err, unix.ENOENT)
	}
	if m.same != nil && have.Mode&unix.S_IFMT == unix.S_IFREG && m.same(src, have) {
		return true, nil
	}
	return false, m.remove(dst, name)
}

func (m *mirror) create(src file, dst int, name string) error {
	fd, err := unix.Openat(dst, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := m.contents(src.fd, fd, src.st); err != nil {
		return err
	}
	if err := m.describe(src, fd); err != nil {
		return err
	}
	if m.made == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	return m.made(src, file{fd, &st})
}

// contents copies a file's contents and keeps holes.
func (m *mirror) contents(src, dst int, st *unix.Stat_t) error {
	if st.Size == 0 {
		return nil
	}
	if !m.noClone.Load() {
		if err := m.room(dst, 0); err != nil {
			return err
		}
		err := unix.IoctlFileClone(dst, src)
		if err == nil {
			return nil
		}
		if !host.IsAny(err, unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.EPERM) {
			return err
		}
		m.noClone.Store(true)
	}
	if err := m.room(dst, min(st.Size, st.Blocks*512)); err != nil {
		return err
	}
	return copyData(m.ctx, src, dst, st.Size)
}

func (m *mirror) room(dst int, taken int64) error {
	if !m.keepFree {
		return nil
	}
	return sizedfs.Room(dst, taken)
}

// copyStep is the number of bytes to copy between two checks of the context.
const copyStep = 64 << 20

// copyData copies the parts of a file outside of holes.
func copyData(ctx context.Context, src, dst int, size int64) error {
	if err := unix.Ftruncate(dst, size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		begin, err := unix.Seek(src, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // a hole up to the end
		}
		end := size
		if err == nil {
			end, err = unix.Seek(src, begin, unix.SEEK_HOLE)
		}
		if errors.Is(err, unix.EINVAL) { // the file system does not support holes
			begin, end, err = at, size, nil
		}
		if err != nil {
			return err
		}
		at = min(end, size)
		if err := copyRange(ctx, src, dst, begin, at); err != nil {
			return err
		}
	}
	return nil
}

func copyRange(ctx context.Context, src, dst int, from, to int64) error {
	_, err := unix.Seek(dst, from, unix.SEEK_SET)
	for slowly := false; err == nil && from < to; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var n int
		step := int(min(to-from, copyStep))
		if slowly {
			n, err = unix.Sendfile(dst, src, &from, step)
		} else {
			n, err = unix.CopyFileRange(src, &from, dst, nil, step, 0)
		}
		switch {
		case errors.Is(err, unix.EINTR):
			err = nil
		// The kernel cannot copy between these file systems.
		case !slowly && host.IsAny(err, unix.EXDEV, unix.EOPNOTSUPP, unix.ENOSYS, unix.EINVAL):
			slowly, err = true, nil
		case err == nil && n == 0: // the file became shorter
			return nil
		}
	}
	return err
}

// entry copies an entry other than a directory or a regular file.
func (m *mirror) entry(src int, l *level, name string, st *unix.Stat_t) error {
	dst := l.dst
	kind := st.Mode & unix.S_IFMT
	if !l.fresh { // recreating the entry is cheap
		if err := m.remove(dst, name); err != nil {
			return err
		}
	}
	switch kind {
	case unix.S_IFLNK:
		target, err := readlink(src, name)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			return nil
		}
		if err == nil {
			err = unix.Symlinkat(target, dst, name)
		}
		if err != nil {
			return err
		}
	case unix.S_IFIFO, unix.S_IFSOCK:
		if err := unix.Mknodat(dst, name, kind|0o600, 0); err != nil {
			return err
		}
	default:
		return fmt.Errorf("the workspace contains a device, %.80q: %w", l.path+name, backend.ErrUnsupported)
	}
	if err := m.own(dst, name, st); err != nil {
		return err
	}
	if kind != unix.S_IFLNK {
		if err := host.Chmod(dst, name, st.Mode&0o7777); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dst, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// first handles files with several hard links. If the file was already found under another name, first returns the
// other name in the target. Otherwise it remembers the name.
func (m *mirror) first(l *level, name string, st *unix.Stat_t) (path string, ok bool, err error) {
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink < 2 {
		return "", false, nil
	}
	id := inodeOf(st)
	if path, ok = m.links[id]; ok || len(l.path)+len(name) >= unix.PathMax {
		return path, ok, nil
	}
	if m.linked += 64 + len(l.path) + len(name); m.linked > maxLinked { // a map entry and the text
		return "", false, fmt.Errorf("the paths of the workspace's hard links need more than %d MiB; remove some: %w",
			maxLinked>>20, backend.ErrTooLarge)
	}
	m.links[id] = l.path + name
	return "", false, nil
}

// maxLinked bounds the memory for files with several hard links. Commands control the number of files and the length of
// their paths.
const maxLinked = 256 << 20

// link creates a hard link to the target's file with the name first.
func (m *mirror) link(src int, first string, l *level, name string) error {
	if !l.fresh {
		have, err := stat(l.dst, name)
		of, missing := statBelow(l.top, first)
		if err == nil && missing == nil && inodeOf(of) == inodeOf(have) {
			return nil
		}
		if err := m.remove(l.dst, name); err != nil {
			return err
		}
	}
	err := linkBelow(l.top, first, l.dst, name)
	// A command may have replaced first, or the final mode of the directory denies access.
	if host.IsAny(err, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES) {
		return m.regular(src, l, name)
	}
	return err
}

// linkBelow links to a file of a tree by path and does not follow symbolic links on the path.
func linkBelow(top int, path string, dst int, name string) error {
	dir, base, err := parent(top, path)
	if err != nil {
		return err
	}
	return errors.Join(unix.Linkat(dir, base, dst, name, 0), unix.Close(dir))
}

func statBelow(top int, path string) (*unix.Stat_t, error) {
	dir, base, err := parent(top, path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	return stat(dir, base)
}

// parent opens the parent directory of a path in a tree.
func parent(top int, path string) (dir int, base string, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if dir, err = unix.Openat(top, ".", flags, 0); err != nil {
		return -1, "", err
	}
	for {
		name, rest, below := strings.Cut(path, "/")
		if !below {
			return dir, name, nil
		}
		next, err := unix.Openat(dir, name, flags, 0)
		if err = errors.Join(err, unix.Close(dir)); err != nil {
			return -1, "", err
		}
		dir, path = next, rest
	}
}

// enter opens a directory. If the directory's mode denies access to the owner and the owner is not root, enter adds the
// missing permissions until leave is called.
func (m *mirror) enter(dir int, name string) (fd int, leave func() error, err error) {
	fd, mode, err := usable(dir, name, unix.O_DIRECTORY)
	if err != nil || mode == nil {
		return fd, func() error { return unix.Close(fd) }, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, nil, errors.Join(err, unix.Close(fd))
	}
	if m.modes == nil {
		m.modes = map[inode]uint32{}
	}
	m.modes[inodeOf(&st)] = *mode
	return fd, func() error { return errors.Join(unix.Fchmod(fd, *mode), unix.Close(fd)) }, nil
}

// openFile opens a file for reading, even if the file's mode denies access to the owner and the owner is not root.
func openFile(dir int, name string) (int, error) {
	fd, mode, err := usable(dir, name, unix.O_NONBLOCK)
	if errors.Is(err, unix.EAGAIN) {
		err = fmt.Errorf("a process has a lease on %q: %w", name, backend.ErrBusy)
	}
	if err == nil && mode != nil {
		if err = unix.Fchmod(fd, *mode); err != nil {
			_ = unix.Close(fd) // only opened
		}
	}
	return fd, err
}

// usable opens a file or directory for reading. If the mode denied access to the owner, usable changes the mode and
// returns the previous mode.
func usable(dir int, name string, flags int) (fd int, mode *uint32, err error) {
	fd, refused := unix.Openat(dir, name, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	isDir := flags&unix.O_DIRECTORY != 0
	if os.Geteuid() == 0 || refused != nil && !errors.Is(refused, unix.EACCES) || refused == nil && !isDir {
		return fd, nil, refused
	}
	if refused != nil {
		if fd, err = unix.Openat(dir, name, flags|unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
			return -1, nil, err
		}
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err != nil {
		return -1, nil, errors.Join(err, unix.Close(fd))
	}
	had, want := st.Mode&0o7777, needed(&st)
	switch kind := st.Mode & unix.S_IFMT; {
	case refused == nil && had|want == had:
		return fd, nil, nil
	case had|want == had, kind != unix.S_IFDIR && kind != unix.S_IFREG: // the mode is not the cause
		return -1, nil, errors.Join(refused, unix.Close(fd))
	}
	path, again := "/proc/self/fd/"+strconv.Itoa(fd), -1
	if err = unix.Chmod(path, had|want); err == nil {
		again, err = unix.Open(path, flags|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	return again, &had, errors.Join(err, unix.Close(fd))
}

// describe copies the owner, mode, extended attributes, and times of a file to another file.
func (m *mirror) describe(src file, dst int) error {
	uid, gid := m.owner(src.st)
	if os.Geteuid() == 0 {
		if err := unix.Fchown(dst, uid, gid); err != nil {
			return err
		}
	}
	if err := m.copyXattrs(src.fd, dst); err != nil { // before the mode, which may forbid it
		return err
	}
	if err := unix.Fchmod(dst, m.mode(src, dst)); err != nil {
		return err
	}
	times := []unix.Timespec{src.st.Atim, src.st.Mtim}
	return unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(dst), times, 0)
}

// keptMode is an extended attribute on files of a snapshot. It stores the original mode if this mode would deny access
// to the snapshot's owner, an unprivileged user.
const keptMode = "user.workcell.mode"

// mode returns the mode for a copy of a file.
func (m *mirror) mode(of file, dst int) uint32 {
	mode := of.st.Mode & 0o7777
	var b [4]byte
	if m.fromKept {
		if n, err := unix.Fgetxattr(of.fd, keptMode, b[:]); err == nil && n == len(b) {
			mode = binary.LittleEndian.Uint32(b[:]) & 0o7777
		}
	}
	open := mode | needed(of.st)
	if !m.toKept || os.Geteuid() == 0 || mode == open {
		return mode
	}
	binary.LittleEndian.PutUint32(b[:], mode)
	if unix.Fsetxattr(dst, keptMode, b[:], 0) != nil { // the file system does not support extended attributes
		return mode
	}
	return open
}

// needed returns the owner's necessary permissions to read a file and to set the file's attributes. For a directory, it
// returns the owner's necessary permissions to change the directory.
func needed(st *unix.Stat_t) uint32 {
	if isDir(st) {
		return 0o700
	}
	return 0o600
}

// attributes is like describe, for a directory whose entries are complete.
func (m *mirror) attributes(src, dst int) error {
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	if mode, ok := m.modes[inodeOf(&st)]; ok {
		st.Mode = st.Mode&unix.S_IFMT | mode
	}
	return m.describe(file{src, &st}, dst)
}

func (m *mirror) owner(st *unix.Stat_t) (uid, gid int) { return m.shifted(st.Uid), m.shifted(st.Gid) }

// shifted moves an ID from one block to another. All IDs are inside their block.
func (m *mirror) shifted(id uint32) int { return int(int64(id) + m.shift) }

func (m *mirror) own(dst int, name string, st *unix.Stat_t) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid := m.owner(st)
	return unix.Fchownat(dst, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
}

func stat(dir int, name string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, err
	}
	return &st, nil
}

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

func readlink(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// list returns the names in a directory.
func list(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "dir")
	defer f.Close()
	return f.Readdirnames(-1)
}

// markName returns the name of the extended attribute in which a copy stores the original's fingerprint.
func markName() string {
	if os.Geteuid() == 0 {
		return "trusted.workcell.origin"
	}
	return "user.workcell.origin"
}

// mark stores the fingerprint of the original in a copy, to avoid the copy of an unchanged file in a rollback.
func mark(of *unix.Stat_t, copy int) error {
	err := unix.Fsetxattr(copy, markName(), fingerprint(of), 0) // without it, a rollback copies the file
	return host.Ignore(err, unix.EOPNOTSUPP, unix.ENOSPC, unix.EPERM, unix.EACCES)
}

// fingerprint returns a different value for every file of a file system and every state of the file.
func fingerprint(st *unix.Stat_t) []byte {
	b := binary.LittleEndian.AppendUint64(nil, st.Ino)
	b = binary.LittleEndian.AppendUint64(b, uint64(st.Ctim.Sec))  //nolint:gosec // only compared
	b = binary.LittleEndian.AppendUint64(b, uint64(st.Ctim.Nsec)) //nolint:gosec // only compared
	return binary.LittleEndian.AppendUint64(b, uint64(st.Size))   //nolint:gosec // only compared
}

// marked reports whether a file is a copy of the original in the current state. last is the time of the last marks. A
// file changed right before this time may have changed again with the same ctime, so marked returns false for it.
func marked(copy file, original *unix.Stat_t, last time.Time) bool {
	if !changedBefore(original, last.Add(-tick)) {
		return false
	}
	var b [64]byte
	n, err := unix.Fgetxattr(copy.fd, markName(), b[:])
	return err == nil && string(b[:n]) == string(fingerprint(original))
}

// unchanged reports whether the earlier copy has the file in the current state.
func (m *mirror) unchanged(original *unix.Stat_t, l *level, name string) bool {
	if l.prev < 0 {
		return false
	}
	fd, err := unix.Openat(l.prev, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return marked(file{fd: fd}, original, m.prevMarked)
}

func changedBefore(st *unix.Stat_t, t time.Time) bool {
	return time.Unix(st.Ctim.Sec, st.Ctim.Nsec).Before(t)
}

// copyXattrs copies the extended attributes settable by programs in the sandbox.
func (m *mirror) copyXattrs(src, dst int) error {
	n, err := unix.Flistxattr(src, nil)
	if err != nil || n == 0 {
		return host.Ignore(err, unix.EOPNOTSUPP)
	}
	buf := make([]byte, n+4096)
	if n, err = unix.Flistxattr(src, buf); err != nil {
		return host.Ignore(err, unix.EOPNOTSUPP)
	}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		ofProgram := strings.HasPrefix(name, "user.") || strings.HasPrefix(name, aclPrefix)
		if !ofProgram || name == markName() || name == keptMode {
			continue
		}
		value := make([]byte, 64<<10)
		size, err := unix.Fgetxattr(src, name, value)
		if err == nil {
			if strings.HasPrefix(name, aclPrefix) {
				m.shiftACL(value[:size])
			}
			err = unix.Fsetxattr(dst, name, value[:size], 0)
		}
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EACCES) { // the mode denies access
			return host.Ignore(err, unix.EOPNOTSUPP)
		}
	}
	return nil
}

// aclPrefix is the prefix of the attributes with access control lists.
const aclPrefix = "system.posix_acl_"

// shiftACL shifts the user and group IDs in an access control list. The list consists of a version and entries of tag,
// permissions, and ID.
func (m *mirror) shiftACL(list []byte) {
	const user, group, size = 2, 8, 8
	for at := 4; at+size <= len(list); at += size {
		if tag := binary.LittleEndian.Uint16(list[at:]); tag == user || tag == group {
			id := m.shifted(binary.LittleEndian.Uint32(list[at+4:]))
			binary.LittleEndian.PutUint32(list[at+4:], uint32(id)) //nolint:gosec // an id of the other block
		}
	}
}

// removeTree removes a subdirectory. It uses the path of the open directory, because a full path could be too long.
func removeTree(ctx context.Context, dir int, name string) error {
	if os.Geteuid() != 0 {
		if err := host.Chmod(dir, name, 0o700); err != nil {
			return err
		}
	}
	return host.RemoveTree(ctx, "/proc/self/fd/"+strconv.Itoa(dir)+"/"+name)
}
