package files

import (
	"errors"
	"slices"

	"github.com/workcell-dev/workcell/internal/guest/disk"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// List serves wire.OpList.
func (s *Service) List(r Request, req *wire.ListRequest) error {
	root, rel, err := s.locate(req.Path)
	if err != nil {
		return err
	}
	l := &lister{limit: req.Limit, recursive: req.Recursive, buf: make([]byte, 1<<13)}
	if l.limit <= 0 {
		l.limit = wire.DefaultListEntries
	}
	l.limit = min(l.limit, wire.MaxListEntries)
	err = s.fs.Do(func() error {
		f, err := root.open(rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
		if err != nil {
			return err
		}
		defer f.Close()
		if shown := root.shown(rel); shown != "." {
			l.path = []byte(shown + "/")
		}
		return l.list(int(f.Fd()))
	})
	if err != nil {
		return pathError(err, req.Path)
	}
	return r.Answer(wire.ListResult{Entries: l.entries, Total: l.total, Truncated: l.truncated})
}

// privateDir holds what Workcell itself keeps in the work directory, homes of coding agents among it: a list shows it only to who
// names it.
const privateDir = ".workcell"

// listHeld is how many directories below each other a list holds open; those above are opened again on the way back.
const listHeld = 64

// lister lists a tree, depth first, the names of each directory sorted. Of a directory it holds only as many names as can
// be listed.
type lister struct {
	limit     int
	recursive bool

	dirs []listDir // the directory that is being listed behind those that it lies in
	path []byte    // its path with a slash at the end; empty for the work directory
	buf  []byte    // for reading directories

	entries   []wire.FileInfo
	bytes     int  // of the entries' paths
	full      bool // no more entries
	total     int64
	truncated bool
}

type listDir struct {
	fd    int // -1 while it is closed because too many are open
	id    disk.FileID
	path  int      // length of its path
	names []string // still to be listed
}

// list lists the directory top, which stays the caller's.
func (l *lister) list(top int) error {
	if err := l.enter(top); err != nil {
		return err
	}
	for len(l.dirs) > 0 && l.total < wire.MaxListTotal {
		d := &l.dirs[len(l.dirs)-1]
		if len(d.names) == 0 {
			l.leave()
			continue
		}
		name := d.names[0]
		d.names = d.names[1:]
		if d.path == 0 && name == privateDir {
			continue
		}
		l.path = append(l.path[:d.path], name...)
		var st unix.Stat_t
		if unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue // removed meanwhile
		}
		l.total++
		l.add(&st)
		if l.recursive && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			l.below(d.fd, name)
		}
	}
	l.truncated = l.truncated || len(l.dirs) > 0
	for len(l.dirs) > 0 {
		l.pop()
	}
	return nil
}

// below enters a subdirectory. One that may not be read stays an entry without contents.
func (l *lister) below(fd int, name string) {
	sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	l.path = append(l.path, '/')
	if l.enter(sub) != nil {
		_ = unix.Close(sub) // only read
		return
	}
	if up := len(l.dirs) - listHeld; up > 0 {
		_ = unix.Close(l.dirs[up].fd) // only read
		l.dirs[up].fd = -1
	}
}

// enter lists the directory fd next.
func (l *lister) enter(fd int) error {
	id, err := identify(fd)
	if err != nil {
		return err
	}
	names, err := l.names(fd)
	if err != nil {
		return err
	}
	l.dirs = append(l.dirs, listDir{fd: fd, id: id, path: len(l.path), names: names})
	return nil
}

// leave resumes with the directory above. When that is closed and not above any more, because a command moved something,
// its rest is left out.
func (l *lister) leave() {
	if up := len(l.dirs) - 2; up >= 0 && l.dirs[up].fd < 0 && !l.dirs[up].reopen(l.dirs[up+1].fd) {
		l.truncated, l.dirs[up].names = true, nil
	}
	l.pop()
}

// reopen opens a directory from one in it, and reports whether that was still there.
func (d *listDir) reopen(sub int) bool {
	var err error
	if d.fd, err = unix.Openat(sub, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return false
	}
	id, err := identify(d.fd)
	return err == nil && id == d.id
}

func (l *lister) pop() {
	last := len(l.dirs) - 1
	if fd := l.dirs[last].fd; fd >= 0 && last > 0 {
		_ = unix.Close(fd) // only read
	}
	l.dirs = l.dirs[:last]
}

func identify(fd int) (disk.FileID, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return disk.IDOf(&st), err
}

// add lists the entry at path, unless that or one before it does not fit.
func (l *lister) add(st *unix.Stat_t) {
	if !l.full {
		l.bytes += wire.EncodedPathSize(string(l.path))
		l.full = len(l.entries) >= l.limit || l.bytes > wire.MaxListBytes
	}
	if l.full {
		l.truncated = true
		return
	}
	l.entries = append(l.entries, fileInfo(string(l.path), st))
}

// names returns a directory's names, sorted. Where there are more than can be listed, those behind are only counted, up to
// where the total stops.
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

// cut keeps the first room names in order and counts the others.
func (l *lister) cut(names []string, room int) []string {
	slices.Sort(names)
	l.total += int64(len(names) - room)
	l.truncated = true
	clear(names[room:])
	return names[:room]
}
