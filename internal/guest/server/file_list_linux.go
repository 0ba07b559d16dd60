package server

import (
	"errors"
	"io"
	"os"
	"slices"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

func (s *Server) handleList(r *request) error {
	var req wire.ListRequest
	if err := r.decode(&req); err != nil {
		return err
	}
	rel, err := s.root.rel(req.Path)
	if err != nil {
		return err
	}
	l := &lister{limit: req.Limit, recursive: req.Recursive}
	if l.limit <= 0 {
		l.limit = wire.DefaultListEntries
	}
	l.limit = min(l.limit, wire.MaxListEntries)
	err = s.fs.do(func() error {
		f, err := s.root.OpenFile(rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		prefix := rel + "/"
		if rel == "." {
			prefix = ""
		}
		return l.dir(f, prefix)
	})
	if err != nil {
		return pathError(err, req.Path)
	}
	return r.answer(wire.ListResult{Entries: l.entries, Total: l.total, Truncated: l.truncated})
}

// lister lists a tree, depth first, the names of each directory sorted. It holds one descriptor per level, and of a
// directory only as many names as can still be listed.
type lister struct {
	limit     int
	recursive bool

	entries   []wire.FileInfo
	bytes     int // of the entries' paths
	total     int64
	truncated bool
}

// dir lists f, which it closes.
func (l *lister) dir(f *os.File, prefix string) error {
	defer f.Close()
	names, err := l.names(f)
	if err != nil {
		return err
	}
	fd := int(f.Fd())
	for _, name := range names {
		if l.total >= wire.MaxListTotal {
			l.truncated = true
			return nil
		}
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue // removed meanwhile
		}
		l.total++
		l.add(prefix+name, &st)
		if l.recursive && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			l.below(fd, name, prefix)
		}
	}
	return nil
}

// below lists a subdirectory. One that may not be read stays an entry without contents.
func (l *lister) below(fd int, name, prefix string) {
	sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		err = l.dir(os.NewFile(uintptr(sub), name), prefix+name+"/")
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		l.truncated = true // deeper than there are descriptors
	}
}

func (l *lister) add(rel string, st *unix.Stat_t) {
	size := wire.EncodedPathSize(rel)
	if len(l.entries) >= l.limit || l.bytes+size > wire.MaxListBytes {
		l.truncated = true
		return
	}
	l.bytes += size
	l.entries = append(l.entries, fileInfo(rel, st))
}

// names gives a directory's names, sorted. Where there are more than can be listed, those behind are only counted.
func (l *lister) names(f *os.File) ([]string, error) {
	room := max(l.limit-len(l.entries), 1024)
	if l.recursive {
		room = wire.MaxListEntries
	}
	var names []string
	for {
		some, err := f.Readdirnames(512)
		names = append(names, some...)
		if len(names) > 2*room {
			names = l.cut(names, room)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
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
