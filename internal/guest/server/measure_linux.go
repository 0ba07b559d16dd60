package server

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Bounds of a look at the workspace.
const (
	measureDepth = 256     // directories below each other; each takes a descriptor
	measureOpen  = 1 << 14 // open files of commands that are looked at
)

// survey adds up what lies in the workspace.
type survey struct {
	usage
	dev   uint64
	uid   uint32
	most  int64               // entries after which counting ends: there are too many
	twice map[uint64]struct{} // files with several names that were counted
}

// errTooDeep ends a survey that would take too many descriptors.
var errTooDeep = errors.New("directories are nested too deeply")

// measure adds up what the tree takes on the disk, and what files take that have no name any more but are open. What is
// nested too deeply to be looked at counts as being over the limit.
func measure(dir string, l WorkspaceLimit) usage {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return usage{} // there is nothing to measure
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd) // only opened
		return usage{}
	}
	s := &survey{dev: st.Dev, uid: uint32(os.Getuid()), most: 1 << 40, twice: map[uint64]struct{}{}}
	if l.Files > 0 {
		s.most = 2 * l.most().Files
	}
	if errors.Is(s.dir(os.NewFile(uintptr(fd), dir), 0), errTooDeep) {
		s.bytes = max(s.bytes, l.Bytes+1)
	}
	s.unnamed()
	return s.usage
}

// dir adds what lies in f and closes it.
func (s *survey) dir(f *os.File, depth int) error {
	defer f.Close()
	if depth > measureDepth {
		return errTooDeep
	}
	for s.files <= s.most {
		names, err := f.Readdirnames(512)
		for _, name := range names {
			if err := s.entry(f, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || err != nil && len(names) == 0 {
			break // what vanishes while it is read is not counted
		}
	}
	return nil
}

func (s *survey) entry(dir *os.File, name string, depth int) error {
	fd := int(dir.Fd())
	var st unix.Stat_t
	if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return nil // gone
	}
	s.add(&st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Dev != s.dev {
		return nil
	}
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	sub, err := unix.Openat(fd, name, flags, 0)
	if errors.Is(err, unix.EACCES) || err == nil && st.Mode&0o100 == 0 {
		// A command must not hide files in a directory that it closed to its own user: it is opened for the moment.
		mode := st.Mode & 0o7777
		if st.Uid != s.uid || unix.Fchmodat(fd, name, mode|0o500, 0) != nil {
			return nil // what another user closed, commands cannot write to either
		}
		defer func() { _ = unix.Fchmodat(fd, name, mode, 0) }() // it may be gone
		if err != nil {
			sub, err = unix.Openat(fd, name, flags, 0)
		}
	}
	if err != nil {
		return nil //nolint:nilerr // gone
	}
	return s.dir(os.NewFile(uintptr(sub), name), depth+1)
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
