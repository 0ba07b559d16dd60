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
	cutMost  = 1 << 12 // maximum number of files to truncate at once
	cutPath  = 1 << 10 // maximum length of a file's path, in bytes
	cutNames = 3       // maximum number of file names in a note
)

// growth compares files with the last scan with free space, to keep the earlier contents. It does not record files
// smaller than quotaGrain.
type growth struct {
	before map[FileID]int64 // sizes at the last scan with free space; nil before
	now    map[FileID]int64
	grown  []grownFile
}

// grownFile is a file larger than at the last scan with free space.
type grownFile struct {
	path    string
	id      FileID
	keep    int64 // size at the last scan with free space
	changed int64 // time of the last change, in nanoseconds since the Unix epoch
}

// see compares a file, which has this name in d.
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

// cut truncates files grown since the last scan with free space, starting with the most recently changed file. It stops
// when the workspace is only slightly over the limit, to keep commands from writing. It keeps the contents found by the
// earlier scan, and files written by the guest agent since. No command may run, and the caller must hold looking.
func (q *Quota) cut() {
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
		q.note = "[workcell: workspace limit exceeded, so these files were truncated: "
		q.note += strings.Join(names[:min(n, cutNames)], ", ")
		if n > cutNames {
			q.note += " and " + strconv.Itoa(n-cutNames) + " more"
		}
		q.note += "]\n"
		q.noted = q.stops // a killed command may still finish a write, and cause another kill
	}
}

// shorten removes at least bytes bytes from the end of a file, but only bytes by which the file grew. It returns the
// number of freed bytes.
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
	for step := bytes; freed < bytes && size > f.keep; step *= 2 { // a file with holes may need several steps
		size = max(f.keep, size-step)
		err := unix.Truncate(proc.FDPath(fd), size)
		if errors.Is(err, unix.EACCES) && unix.Chmod(proc.FDPath(fd), was.Mode|0o200) == nil {
			err = unix.Truncate(proc.FDPath(fd), size)
			_ = unix.Chmod(proc.FDPath(fd), was.Mode) // there is no way to handle an error
		}
		if err != nil || unix.Fstat(fd, &is) != nil {
			break
		}
		freed = (was.Blocks - is.Blocks) * 512
	}
	return freed
}
