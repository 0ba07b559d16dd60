package files

import (
	"cmp"
	"errors"
	"slices"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// List handles wire.OpList.
func (s *Service) List(r Request, req *wire.ListRequest) error {
	root, rel, err := s.locate(req.Path)
	if err != nil {
		return err
	}
	limit := min(cmp.Or(max(req.Limit, 0), wire.DefaultListEntries), wire.MaxListEntries)
	l := &lister{limit: limit, recursive: req.Recursive, buf: make([]byte, 1<<13)}
	err = s.fs.Do(func() error {
		f, err := root.open(rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
		if err != nil {
			return err
		}
		defer f.Close()
		dir := ""
		if shown := root.shown(rel); shown != "." {
			dir = shown + "/"
		}
		return l.list(int(f.Fd()), dir, 0)
	})
	if err != nil {
		return pathError(err, req.Path)
	}
	return r.Answer(wire.ListResult{Entries: l.entries, Total: l.total, Truncated: l.truncated})
}

// listDepth is how deep a list looks. The directories on the way are open.
const listDepth = 128

// lister lists a tree depth-first. The names in each directory are sorted. Of each directory, it keeps only as many
// names in memory as the listing can contain.
type lister struct {
	limit     int
	recursive bool
	buf       []byte // buffer for reading directories

	entries   []wire.FileInfo
	bytes     int  // total length of the entries' paths
	full      bool // the listing accepts no more entries
	total     int64
	truncated bool
}

// list lists the directory fd. The path ends with a slash, and is empty for the workspace.
func (l *lister) list(fd int, path string, depth int) error {
	names, err := l.names(fd)
	if err != nil {
		return err
	}
	for _, name := range names {
		if l.total >= wire.MaxListTotal {
			l.truncated = true
			break
		}
		var st unix.Stat_t
		if path == "" && name == wire.PrivateDir || unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue // private and not named in the request, or already removed
		}
		l.total++
		l.add(path+name, &st)
		if l.recursive && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			l.below(fd, name, path+name+"/", depth+1)
		}
	}
	return nil
}

// below lists a subdirectory. An unreadable subdirectory is an entry without contents.
func (l *lister) below(fd int, name, path string, depth int) {
	if depth > listDepth {
		l.truncated = true
		return
	}
	sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		l.truncated = l.truncated || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
		return
	}
	defer unix.Close(sub) // only read
	_ = l.list(sub, path, depth)
}

// add adds an entry, unless the listing is full.
func (l *lister) add(path string, st *unix.Stat_t) {
	if !l.full {
		l.bytes += len(path)
		l.full = len(l.entries) >= l.limit || l.bytes > wire.MaxListBytes
	}
	if l.full {
		l.truncated = true
		return
	}
	l.entries = append(l.entries, fileInfo(path, st))
}

// names returns a directory's names, sorted. If a directory has more names than the listing can contain, the rest is
// only counted, up to the limit of the total.
func (l *lister) names(fd int) ([]string, error) {
	room := max(l.limit-len(l.entries), 1024)
	if l.recursive {
		room = wire.MaxListEntries
	}
	var names []string
	for l.total < wire.MaxListTotal {
		n, err := unix.ReadDirent(fd, l.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(l.buf[:n], -1, names)
		if len(names) > 2*room {
			names = l.cut(names, room)
		}
	}
	slices.Sort(names)
	if len(names) > room {
		names = l.cut(names, room)
	}
	return names, nil
}

// cut keeps the first room names in sorted order and counts the rest.
func (l *lister) cut(names []string, room int) []string {
	slices.Sort(names)
	l.total += int64(len(names) - room)
	l.truncated = true
	clear(names[room:])
	return names[:room]
}
