package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/workcell-dev/workcell/internal/guest/proc"
	"golang.org/x/sys/unix"
)

// Limits of a scan.
const (
	measureDepth = 256     // maximum depth of directories; one descriptor per level is open
	measureOpen  = 1 << 14 // maximum number of open files of commands to examine
	measureTries = 16      // attempts to open a directory if a command keeps closing it
)

// scan sums the sizes of the files in a tree.
type scan struct {
	usage
	dev   uint64
	uid   uint32
	since int64               // skips entries without changes since this time, in Unix nanoseconds; 0 counts all
	most  int64               // maximum number of entries to count
	twice map[FileID]struct{} // counted files with several names, without a name, or mounted by an engine
	ctx   context.Context
	grown *growth // nil for layers
	buf   []byte
	blind bool // commands prevented access to a part of the tree
}

// level is a directory during a scan.
type level struct {
	up    *level
	name  string
	depth int
	fd    int
}

// FileID identifies a file uniquely.
type FileID struct{ dev, ino uint64 }

// IDOf returns the ID of the file described by st.
func IDOf(st *unix.Stat_t) FileID { return FileID{st.Dev, st.Ino} }

// measure returns the disk space of the tree, plus the space of deleted open files. If commands prevent access to the
// tree, blind is true and the tree counts as over the limit. If ctx ends during the scan, the result is
// meaningless. For since and grown, see scan. For mounted, see scan.addMounted.
func measure(
	ctx context.Context, dir *os.File, l Limit, since int64, mounted []string, grown *growth,
) (found usage, blind bool) {
	s := &scan{ctx: ctx, uid: uint32(os.Getuid()), since: since, most: 1 << 40, twice: map[FileID]struct{}{}, grown: grown,
		buf: make([]byte, 1<<13)}
	if l.Files > 0 {
		s.most = 2 * l.most().Files
	}
	var st unix.Stat_t
	above := &level{fd: int(dir.Fd()), depth: -1}
	if unix.Fstat(above.fd, &st) == nil {
		s.dev = st.Dev
	}
	s.addMounted(mounted)
	root := s.open(above, ".")
	if root != nil {
		s.walk(root)
		root.shut()
	}
	s.blind = s.blind || root == nil
	s.addDeleted()
	if s.blind {
		s.bytes = max(s.bytes, l.Bytes+1)
	}
	return s.usage, s.blind
}

// walk adds the entries of d.
func (s *scan) walk(d *level) {
	for s.files <= s.most && s.ctx.Err() == nil {
		n, err := unix.ReadDirent(d.fd, s.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return // entries removed during the scan do not count
		}
		_, _, names := unix.ParseDirent(s.buf[:n], -1, nil)
		for _, name := range names {
			s.entry(d, name)
		}
	}
}

func (s *scan) entry(d *level, name string) {
	var st unix.Stat_t
	err := s.try(d.fd, func() error { return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil || s.since > 0 && unix.TimespecToNsec(st.Ctim) < s.since {
		return // removed, or must not be counted
	}
	s.add(&st)
	s.grown.see(d, name, &st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Dev != s.dev {
		return
	}
	if d.depth >= measureDepth {
		s.blind = true
		return
	}
	sub := s.open(d, name)
	if sub == nil {
		return
	}
	defer sub.shut()
	if !mountPoint(sub.fd) { // of the same file system, for example another directory of the host
		s.walk(sub)
	}
}

// mountPoint reports whether the directory of fd is a mount point. Old kernels do not support this query.
func mountPoint(fd int) bool {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// open opens a directory, or returns nil. It also opens directories with a mode without access for the owner, to
// prevent commands from hiding files in them.
func (s *scan) open(at *level, name string) *level {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Openat(at.fd, name, flags, 0)
	if errors.Is(err, unix.EACCES) {
		fd, err = s.openClosed(at, name)
	}
	if err != nil {
		return nil // removed, or closed by another user, so commands cannot write to it
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Dev != s.dev {
		_ = unix.Close(fd) // another file system
		return nil
	}
	return &level{up: at, name: name, depth: at.depth + 1, fd: fd}
}

func (s *scan) openClosed(at *level, name string) (int, error) {
	path, fd := -1, -1
	err := s.try(at.fd, func() (err error) {
		path, err = unix.Openat(at.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, err
	}
	defer unix.Close(path)
	err = s.try(path, func() (err error) {
		fd, err = unix.Open(proc.FDPath(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		return err
	})
	return fd, err
}

// try makes a call requiring permissions on the directory fd. If the mode denies the owner access, try adds the
// permissions only for the duration of the call. Reading from an open directory needs no permissions. If a command
// removes the permissions faster than try can use them, the directory counts as hidden.
//
// If a command sets the directory's mode during these few instructions to exactly the mode needed by the call, this
// change is lost. This is unavoidable: sandboxes have no capability such as CAP_DAC_READ_SEARCH, so the owner needs a
// suitable mode, and the kernel cannot change a mode atomically.
func (s *scan) try(fd int, call func() error) error {
	fought := false
	err := call()
	for n := 0; n < measureTries && errors.Is(err, unix.EACCES); n++ {
		was, now, ours := s.unlock(fd)
		if !ours {
			return err
		}
		err = call()
		restore(fd, was, now)
		fought = fought || was != now
	}
	s.blind = s.blind || fought && errors.Is(err, unix.EACCES)
	return err
}

// unlock adds permissions to a directory of the guest agent's user. It returns the mode before and after the change.
func (s *scan) unlock(fd int) (was, now uint32, ours bool) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Uid != s.uid {
		return 0, 0, false
	}
	was = st.Mode & 0o7777
	now = was | 0o500
	if was != now && unix.Chmod(proc.FDPath(fd), now) != nil {
		return 0, 0, false
	}
	return was, now, true
}

// restore restores the mode changed by unlock, unless it was changed again.
func restore(fd int, was, now uint32) {
	var st unix.Stat_t
	if was != now && unix.Fstat(fd, &st) == nil && st.Mode&0o777 == now&0o777 {
		_ = unix.Chmod(proc.FDPath(fd), was) // there is no way to handle an error
	}
}

func (d *level) shut() { _ = unix.Close(d.fd) } // only read

func (s *scan) add(st *unix.Stat_t) {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if _, ok := s.twice[IDOf(st)]; ok {
			return
		}
		if st.Nlink != 1 {
			s.twice[IDOf(st)] = struct{}{}
		}
	}
	s.files++
	s.bytes += st.Blocks * 512
}

// addMounted adds the files mounted by an engine over single files of the tree. They are on the engine's disk. The
// first block of each file belongs to the engine.
func (s *scan) addMounted(files []string) {
	for _, file := range files {
		var st unix.Stat_t
		if unix.Lstat(file, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			s.twice[IDOf(&st)] = struct{}{}
			s.bytes += max(0, st.Blocks*512-Block)
		}
	}
}

// addDeleted adds open files of commands without a name. The guest agent's own files are reserved separately.
func (s *scan) addDeleted() {
	left := measureOpen
	for _, pid := range proc.AllPIDs() {
		if pid == os.Getpid() {
			continue
		}
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		names, err := readNames(dir, left)
		if err != nil {
			continue // exited, or not accessible
		}
		for _, name := range names {
			var st unix.Stat_t
			if unix.Stat(filepath.Join(dir, name), &st) == nil && st.Dev == s.dev && st.Nlink == 0 &&
				st.Mode&unix.S_IFMT == unix.S_IFREG {
				s.add(&st)
			}
		}
		if left -= len(names); left <= 0 {
			return
		}
	}
}

// readNames returns up to n names of a directory.
func readNames(dir string, n int) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(n)
}
