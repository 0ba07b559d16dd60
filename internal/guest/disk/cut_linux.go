package disk

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/internal/guest/proc"
	"golang.org/x/sys/unix"
)

const (
	cutMost  = 1 << 12 // files that are cut at a time
	cutPath  = 1 << 10 // bytes of the path of such a file
	cutNames = 3       // files that a note names
)

// growth compares files with the last look that found room. Files below quotaGrain are not recorded.
type growth struct {
	before map[FileID]int64 // sizes at that look; nil before the first one
	now    map[FileID]int64
	grown  []grownFile
}

// grownFile is a file that is larger than it was.
type grownFile struct {
	path    string
	id      FileID
	keep    int64 // its size before
	changed int64 // when its last change was, in nanoseconds of the Unix clock
}

// see compares a file, which is name in d.
func (g *growth) see(d *level, name string, st *unix.Stat_t) {
	if g == nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size < quotaGrain {
		return
	}
	id := IDOf(st)
	g.now[id] = st.Size
	keep := max(g.before[id], quotaGrain)
	if st.Size <= keep || len(g.grown) == cutMost {
		return
	}
	names, size := []string{name}, len(name)
	for ; d.up.name != "" && size < cutPath; d = d.up {
		names, size = append(names, d.name), size+len(d.name)+1
	}
	if slices.Reverse(names); size < cutPath {
		g.grown = append(g.grown, grownFile{strings.Join(names, "/"), id, keep, unix.TimespecToNsec(st.Ctim)})
	}
}

// cut shortens files that grew since the last look that found room, the last changed one first, until the workspace is
// hardly over its limit, so that commands still may not write. Contents that this look found stay, and so do files that
// the guest has written since. No command runs, and the caller holds looking.
func (q *Quota) cut() {
	q.note = ""
	if q.layer != nil || q.growth.before == nil {
		return
	}
	found, _ := q.measure()
	q.mu.Lock()
	since := q.saved.UnixNano()
	q.mu.Unlock()
	files := q.growth.grown
	slices.SortFunc(files, func(a, b grownFile) int { return cmp.Compare(b.changed, a.changed) })
	var names []string
	for _, f := range files {
		excess := found.bytes - q.limit.Bytes
		if excess <= quotaGrain || f.changed <= since {
			break
		}
		if freed := f.shorten(q.root, excess-quotaGrain/2); freed > 0 {
			found.bytes -= freed
			names = append(names, strconv.Quote(f.path))
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.found = found
	q.floor.bytes = max(found.bytes, q.limit.Bytes)
	if n := len(names); n > 0 {
		q.note = "[workcell: workspace limit exceeded, so these files were truncated: " + strings.Join(names[:min(n, cutNames)], ", ")
		if n > cutNames {
			q.note += " and " + strconv.Itoa(n-cutNames) + " more"
		}
		q.note += "]\n"
	}
}

// shorten takes at least so many bytes from the end of a file, if it grew by as many, and returns how many were freed.
func (f grownFile) shorten(root *os.File, bytes int64) (freed int64) {
	fd, err := unix.Openat(int(root.Fd()), f.path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var was, is unix.Stat_t
	if unix.Fstat(fd, &was) != nil || IDOf(&was) != f.id {
		return 0
	}
	size := was.Size
	for step := bytes; freed < bytes && size > f.keep; step *= 2 { // where there are holes, more than once
		size = max(f.keep, size-step)
		err := unix.Truncate(proc.FDPath(fd), size)
		if errors.Is(err, unix.EACCES) && unix.Chmod(proc.FDPath(fd), was.Mode|0o200) == nil {
			err = unix.Truncate(proc.FDPath(fd), size)
			_ = unix.Chmod(proc.FDPath(fd), was.Mode) // nothing else can be done
		}
		if err != nil || unix.Fstat(fd, &is) != nil {
			break
		}
		freed = (was.Blocks - is.Blocks) * 512
	}
	return freed
}
