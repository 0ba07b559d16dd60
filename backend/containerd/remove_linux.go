package containerd

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// maxSweep is how many levels are descended at a time: each holds a descriptor, and a command can make a tree as
	// deep as the disk allows.
	maxSweep = 64
	// sweepNames is how many names of a directory are held at a time.
	sweepNames = 1024
)

// removeAll deletes a file or a tree of whatever depth. It follows no link, and does not mind others who delete the same.
func removeAll(path string) error {
	err := unix.Unlink(path)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	top, err := openDir(unix.AT_FDCWD, path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer top.Close() //nolint:errcheck // only read from
	s := sweep{top: top}
	for {
		again, err := s.empty(top, 0)
		if err == nil && !again {
			err = unix.Rmdir(path)
			again = errors.Is(err, unix.ENOTEMPTY) // somebody else moved something up
		}
		if !again {
			if err = unlessGone(err); err != nil {
				err = &os.PathError{Op: "remove", Path: path, Err: err}
			}
			return err
		}
		if _, err := top.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// sweep is a removal under way. What lies too deep is moved to the top, for the next round.
type sweep struct {
	top   *os.File
	moved int
}

// empty deletes what is in a directory. again: something is left for another round.
func (s *sweep) empty(dir *os.File, depth int) (again bool, err error) {
	for {
		names, err := dir.Readdirnames(sweepNames)
		for _, name := range names {
			more, err := s.remove(dir, name, depth)
			if err != nil {
				return false, err
			}
			again = again || more
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // the latter: it is deleted already
			return again, nil
		}
		if err != nil {
			return false, err
		}
	}
}

func (s *sweep) remove(dir *os.File, name string, depth int) (again bool, err error) {
	at := int(dir.Fd())
	switch err := unix.Unlinkat(at, name, 0); {
	case err == nil, errors.Is(err, unix.ENOENT):
		return false, nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return false, err
	}
	if depth >= maxSweep {
		return true, s.lift(at, name)
	}
	sub, err := openDir(at, name)
	if err != nil {
		return false, unlessGone(err)
	}
	again, err = s.empty(sub, depth+1)
	if err := errors.Join(err, sub.Close()); err != nil {
		return false, err
	}
	err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) { // some file systems lose their place when names go while they are read
		return true, nil
	}
	return again, unlessGone(err)
}

// lift moves a directory to the top, under a name that nothing has.
func (s *sweep) lift(at int, name string) error {
	for {
		s.moved++
		err := unix.Renameat2(at, name, int(s.top.Fd()), fmt.Sprintf("swept-%d", s.moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return unlessGone(err)
		}
	}
}

func unlessGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
