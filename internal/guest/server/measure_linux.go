package server

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Bounds of a look at the workspace.
const (
	measureHeld  = 256     // directories below each other that stay open; those below are opened again on the way back
	measureDepth = 1 << 14 // directories below each other that are looked at
	measureOpen  = 1 << 14 // open files of commands that are looked at
	measureTries = 16      // attempts at a directory that a command closes again and again
	measureFinds = 64      // directories that are sought after they were moved
)

// survey adds up what lies in the workspace.
type survey struct {
	usage
	dev   uint64
	uid   uint32
	most  int64               // entries after which counting ends: there are too many
	twice map[uint64]struct{} // files with several names that were counted
	quit  <-chan struct{}
	buf   []byte
	finds int
	blind bool // something could not be looked at because commands kept it from being
}

// level is a directory that is being looked at.
type level struct {
	up       *level
	name     string
	depth    int
	fd       int // -1 while it is closed because too many are open, and when it is lost
	ino      uint64
	next     int64  // where to read on in one that is closed
	was, now uint32 // its mode before it was opened to the look and then; now is 0 when it needed no opening
}

// measure adds up what the tree takes on the disk, and what files take that have no name any more but are open. A tree
// that is kept from being looked at counts as being over the limit, and blind is told. The result means nothing when quit
// was closed meanwhile.
func measure(dir *os.File, l WorkspaceLimit, quit <-chan struct{}) (found usage, blind bool) {
	s := &survey{uid: uint32(os.Getuid()), most: 1 << 40, twice: map[uint64]struct{}{}, quit: quit, buf: make([]byte, 1<<13)}
	if l.Files > 0 {
		s.most = 2 * l.most().Files
	}
	var st unix.Stat_t
	root := &level{up: &level{fd: int(dir.Fd())}, name: ".", fd: -1}
	if unix.Fstat(root.up.fd, &st) == nil {
		s.dev = st.Dev
	}
	s.unlock(root.up) // "." must be searched for
	if s.open(root, root.up, root.name) {
		s.walk(root)
		root.leave()
	} else {
		s.blind = true
	}
	root.up.restore()
	s.unnamed()
	if s.blind {
		s.bytes = max(s.bytes, l.Bytes+1)
	}
	return s.usage, s.blind
}

// walk adds what lies in d.
func (s *survey) walk(d *level) {
	for s.files <= s.most && !s.ended() {
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
			if d.fd < 0 {
				return
			}
		}
	}
}

func (s *survey) ended() bool {
	select {
	case <-s.quit:
		return true
	default:
		return false
	}
}

func (s *survey) entry(d *level, name string) {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EACCES) {
		err = s.try(d, func() error { return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	}
	if err != nil {
		return // gone
	}
	s.add(&st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Dev != s.dev {
		return
	}
	if d.depth >= measureDepth {
		s.blind = true
		return
	}
	sub := &level{up: d, name: name, depth: d.depth + 1, fd: -1}
	if !s.open(sub, d, name) {
		return
	}
	if d.depth >= measureHeld {
		d.park()
	}
	s.walk(sub)
	if d.fd < 0 {
		s.resume(d, sub)
	}
	sub.leave()
}

// open opens d, which is name in at, and tells whether it did. A command must not hide files in a directory that it
// closed to its own user: it is opened to the look for the moment.
func (s *survey) open(d, at *level, name string) bool {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	var t level
	var err error
	t.fd, err = unix.Openat(at.fd, name, flags, 0)
	if errors.Is(err, unix.EACCES) {
		t.fd, err = s.openClosed(&t, at, name)
	}
	if err != nil {
		return false // gone, or another user closed it: then commands cannot write to it either
	}
	var st unix.Stat_t
	if unix.Fstat(t.fd, &st) != nil || st.Dev != s.dev || d.ino != 0 && d.ino != st.Ino {
		t.leave() // another one
		return false
	}
	if st.Mode&0o500 != 0o500 {
		s.unlock(&t)
	}
	d.fd, d.ino = t.fd, st.Ino
	if t.now != 0 {
		d.was, d.now = t.was, t.now
	}
	return true
}

func (s *survey) openClosed(d, at *level, name string) (int, error) {
	path := -1
	err := s.try(at, func() (err error) {
		path, err = unix.Openat(at.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, err
	}
	defer unix.Close(path)
	d.fd = path
	fd := -1
	err = s.try(d, func() (err error) {
		fd, err = unix.Open(d.self(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		d.restore()
	}
	return fd, err
}

// try calls what d must be open to the look for. Who closes it faster than it can be used has hidden it.
func (s *survey) try(d *level, call func() error) error {
	fought := false
	var err error
	for range measureTries {
		if err = call(); !errors.Is(err, unix.EACCES) {
			return err
		}
		opened, ours := s.unlock(d)
		if !ours {
			return err
		}
		fought = fought || opened
	}
	s.blind = s.blind || fought
	return err
}

// unlock opens d to the look. It tells whether that was necessary and whether d is the guest's user's.
func (s *survey) unlock(d *level) (opened, ours bool) {
	var st unix.Stat_t
	if unix.Fstat(d.fd, &st) != nil || st.Uid != s.uid {
		return false, false
	}
	mode := st.Mode & 0o7777
	if mode&0o500 == 0o500 {
		return false, true
	}
	if unix.Chmod(d.self(), mode|0o500) != nil {
		return false, false
	}
	d.was, d.now = mode, mode|0o500
	return true, true
}

// restore closes what unlock opened, unless somebody has given it another mode since.
func (d *level) restore() {
	var st unix.Stat_t
	if d.now == 0 || unix.Fstat(d.fd, &st) != nil || st.Mode&0o777 != d.now&0o777 {
		return
	}
	_ = unix.Chmod(d.self(), d.was) // nothing else can be done
}

// self is a path to the directory itself, wherever it was moved to.
func (d *level) self() string { return "/proc/self/fd/" + strconv.Itoa(d.fd) }

// leave ends the look at d.
func (d *level) leave() {
	if d.fd >= 0 {
		d.restore()
		d.shut()
	}
}

func (d *level) shut() {
	_ = unix.Close(d.fd) // only read
	d.fd = -1
}

// park closes d until resume opens it again, where reading goes on.
func (d *level) park() {
	if next, err := unix.Seek(d.fd, 0, unix.SEEK_CUR); err == nil {
		d.next = next
		d.shut()
	}
}

// resume opens d again from sub, which was found in it. One that was moved away from there is sought by its name.
func (s *survey) resume(d, sub *level) {
	if (sub.fd < 0 || !s.open(d, sub, "..")) && s.finds < measureFinds {
		s.finds++
		s.blind = s.blind || s.finds == measureFinds
		s.find(d)
	}
	if d.fd < 0 {
		return
	}
	if _, err := unix.Seek(d.fd, d.next, unix.SEEK_SET); err != nil {
		d.leave()
	}
}

// find opens d by the names of the directories above it. No more than two of those are open at a time.
func (s *survey) find(d *level) bool {
	if d.up.fd < 0 {
		if !s.find(d.up) {
			return false
		}
		defer d.up.shut()
	}
	return s.open(d, d.up, d.name)
}

func (s *survey) add(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if _, ok := s.twice[st.Ino]; ok {
			return
		}
		s.twice[st.Ino] = struct{}{}
	}
	s.files++
	s.bytes += st.Blocks * 512
}

// unnamed adds the files that were deleted, or never had a name, and are held open by a command. The guest's own are
// claimed.
func (s *survey) unnamed() {
	left := measureOpen
	for _, pid := range allPIDs() {
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
			if _, ok := s.twice[st.Ino]; !ok {
				s.twice[st.Ino] = struct{}{}
				s.files++
				s.bytes += st.Blocks * 512
			}
		}
		if left -= len(names); left <= 0 {
			return
		}
	}
}

// readNames gives up to n names of a directory.
func readNames(dir string, n int) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(n)
}
