package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/workcell-dev/workcell/internal/guest/proc"
	"golang.org/x/sys/unix"
)

// Bounds of a look.
const (
	measureDepth = 256     // directories below each other that are looked at; all of them stay open
	measureOpen  = 1 << 14 // open files of commands that are looked at
	measureTries = 16      // attempts at a directory that a command closes again and again
)

// scan adds up what lies in a tree.
type scan struct {
	usage
	dev   uint64
	uid   uint32
	since int64               // nanoseconds of the Unix clock; what has not changed since is neither counted nor entered; 0 for all
	most  int64               // entries after which counting ends: there are too many
	twice map[FileID]struct{} // files with several names, and those of an engine, that were counted
	quit  <-chan struct{}
	grown *growth // nil for layers
	buf   []byte
	blind bool // something could not be looked at because commands kept it from being
}

// level is a directory that is being looked at.
type level struct {
	up    *level
	name  string
	depth int
	fd    int
}

// FileID names a file among all.
type FileID struct{ dev, ino uint64 }

// IDOf returns the ID of the file that st describes.
func IDOf(st *unix.Stat_t) FileID { return FileID{st.Dev, st.Ino} }

// measure adds up what the tree takes on the disk, and what files take that have no name any more but are open. A tree
// that is kept from being looked at counts as being over the limit, which blind reports. The result means nothing when
// quit was closed meanwhile. For since and grown see scan, for mounted see scan.addMounted.
func measure(dir *os.File, l Limit, since int64, mounted []string, grown *growth, quit <-chan struct{}) (found usage, blind bool) {
	s := &scan{uid: uint32(os.Getuid()), since: since, most: 1 << 40, twice: map[FileID]struct{}{}, quit: quit, grown: grown, buf: make([]byte, 1<<13)}
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

// walk adds what lies in d.
func (s *scan) walk(d *level) {
	for s.files <= s.most && !closed(s.quit) {
		n, err := unix.ReadDirent(d.fd, s.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return // what vanishes while it is read is not counted
		}
		_, _, names := unix.ParseDirent(s.buf[:n], -1, nil)
		for _, name := range names {
			s.entry(d, name)
		}
	}
}

// closed reports whether c is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *scan) entry(d *level, name string) {
	var st unix.Stat_t
	err := s.try(d.fd, func() error { return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil || s.since > 0 && unix.TimespecToNsec(st.Ctim) < s.since {
		return // gone, or not to be counted
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
	if !mountPoint(sub.fd) { // of the same file system, as two directories of the host can be
		s.walk(sub)
	}
}

// mountPoint reports whether something is mounted where fd was opened, as far as the kernel knows.
func mountPoint(fd int) bool {
	var st unix.Statx_t
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st) == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// open opens a directory, or returns nil. A command must not hide files in a directory that it closed to its own user.
func (s *scan) open(at *level, name string) *level {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Openat(at.fd, name, flags, 0)
	if errors.Is(err, unix.EACCES) {
		fd, err = s.openClosed(at, name)
	}
	if err != nil {
		return nil // gone, or another user closed it: then commands cannot write to it either
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Dev != s.dev {
		_ = unix.Close(fd) // another one
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

// try makes a call for which the directory fd may have to be open to its own user, and opens it for no longer than that
// call: what is read from an open directory needs no mode any more. Who closes it faster than it can be used has hidden
// it.
//
// A mode that a command sets within these few instructions can still be lost, when it is the very one that the call
// needed. Without a capability, which no sandbox has, nothing but the mode lets an owner in, and the kernel changes no
// mode on the condition that it is still the one that was seen.
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

// unlock opens a directory of the guest's user, and returns its mode before and after.
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

// restore closes what unlock opened, unless somebody has given it another mode since.
func restore(fd int, was, now uint32) {
	var st unix.Stat_t
	if was != now && unix.Fstat(fd, &st) == nil && st.Mode&0o777 == now&0o777 {
		_ = unix.Chmod(proc.FDPath(fd), was) // nothing else can be done
	}
}

func (d *level) shut() { _ = unix.Close(d.fd) } // only read

func (s *scan) add(st *unix.Stat_t) {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if _, ok := s.twice[IDOf(st)]; ok {
			return
		}
		if st.Nlink > 1 {
			s.twice[IDOf(st)] = struct{}{}
		}
	}
	s.files++
	s.bytes += st.Blocks * 512
}

// addMounted adds the files that an engine mounts over single files of the tree: they lie on its own disk. Their first
// block is the engine's.
func (s *scan) addMounted(files []string) {
	for _, file := range files {
		var st unix.Stat_t
		if unix.Lstat(file, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			s.twice[IDOf(&st)] = struct{}{}
			s.bytes += max(0, st.Blocks*512-Block)
		}
	}
}

// addDeleted adds the files that were deleted, or never had a name, and are held open by a command. The guest's own are
// reserved.
func (s *scan) addDeleted() {
	left := measureOpen
	for _, pid := range proc.AllPIDs() {
		if pid == os.Getpid() {
			continue
		}
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		names, err := readNames(dir, left)
		if err != nil {
			continue // gone, or not ours to look at
		}
		for _, name := range names {
			var st unix.Stat_t
			if unix.Stat(filepath.Join(dir, name), &st) != nil || st.Dev != s.dev || st.Nlink != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			if _, ok := s.twice[IDOf(&st)]; !ok {
				s.twice[IDOf(&st)] = struct{}{}
				s.files++
				s.bytes += st.Blocks * 512
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
