package files

import (
	"cmp"
	"errors"
	"io"
	"os"

	"github.com/workcell-dev/workcell/internal/guest/disk"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// onPath calls op with the path of a request.
func (s *Service) onPath(r Request, req *wire.PathRequest, op func(root *root, rel string) (any, error)) error {
	root, rel, err := s.locate(req.Path)
	if err != nil {
		return err
	}
	var answer any
	err = s.fs.Do(func() (err error) { answer, err = op(root, rel); return err })
	if err != nil {
		return pathError(err, req.Path)
	}
	return r.Answer(answer)
}

// Stat handles wire.OpStat.
func (s *Service) Stat(r Request, req *wire.PathRequest) error {
	return s.onPath(r, req, func(root *root, rel string) (any, error) { return root.lstat(rel) })
}

// Mkdir handles wire.OpMkdir.
func (s *Service) Mkdir(r Request, req *wire.PathRequest) error {
	return s.onPath(r, req, func(root *root, rel string) (any, error) {
		release, err := root.reserve(disk.Block, 1)
		if err != nil {
			return nil, err
		}
		defer release()
		mode := cmp.Or(req.Mode, 0o755)
		if mode > 0o777 {
			return nil, wire.Errorf(wire.CodeInvalid, "mode %#o must contain only permission bits", mode)
		}
		if err := root.makeDirs(rel, os.FileMode(mode)); err != nil {
			return nil, err
		}
		return root.lstat(rel)
	})
}

// Rename handles wire.OpRename.
func (s *Service) Rename(r Request, req *wire.RenameRequest) error {
	fromRoot, from, err := s.locate(req.From)
	if err != nil {
		return err
	}
	toRoot, to, err := s.locate(req.To)
	if err != nil {
		return err
	}
	if from == "." || to == "." {
		return wire.Errorf(wire.CodeInvalid, "%s cannot be moved", fromRoot.dir)
	}
	err = s.fs.Do(func() error {
		fromDir, fromBase, err := fromRoot.parent(from)
		if err != nil {
			return err
		}
		defer fromDir.Close()
		toDir, toBase, err := toRoot.parent(to)
		if err != nil {
			return err
		}
		defer toDir.Close()
		var flags uint
		if !req.Overwrite {
			flags = unix.RENAME_NOREPLACE
		}
		return rename(int(fromDir.Fd()), fromBase, int(toDir.Fd()), toBase, flags)
	})
	if err != nil {
		return pathError(err, req.From+" to "+req.To)
	}
	return r.Answer(wire.Empty{})
}

// Remove handles wire.OpRemove.
func (s *Service) Remove(r Request, req *wire.PathRequest) error {
	return s.onPath(r, req, func(root *root, rel string) (any, error) {
		if rel == "." {
			return nil, wire.Errorf(wire.CodeInvalid, "%s cannot be removed", root.dir)
		}
		dir, base, err := root.parent(rel)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		fd := int(dir.Fd())
		var st unix.Stat_t
		if err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return wire.RemoveResult{Deleted: 1}, unix.Unlinkat(fd, base, 0)
		}
		if !req.Recursive {
			return nil, wire.Errorf(wire.CodeInvalid, "%s: is a directory; set recursive to remove it", show(req.Path))
		}
		var res wire.RemoveResult
		err = removeTree(fd, base, &res.Deleted)
		return res, err
	})
}

// removeTree removes a directory and all contents. It only uses descriptors and single names, to avoid following links,
// even in a race. It only opens directories.
func removeTree(parent int, name string, deleted *int64) error {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	// A pass may miss entries while it removes others. If a command keeps creating entries, the number of passes is
	// limited.
	for range 16 {
		if err := removeEntries(f, deleted); err != nil {
			return err
		}
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if err == nil {
		*deleted++
	}
	return err
}

// removeEntries removes the entries of a directory in one pass.
func removeEntries(f *os.File, deleted *int64) error {
	fd := int(f.Fd())
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for {
		names, err := f.Readdirnames(512)
		for _, n := range names {
			if err := removeEntry(fd, n, deleted); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func removeEntry(fd int, name string, deleted *int64) error {
	err := unix.Unlinkat(fd, name, 0)
	switch {
	case err == nil:
		*deleted++
		return nil
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.EPERM):
		if terr := removeTree(fd, name, deleted); !errors.Is(terr, unix.ENOTDIR) {
			return terr
		}
	}
	return err
}
