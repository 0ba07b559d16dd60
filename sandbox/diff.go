package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/patch"
)

// Bounds of ReadTree and Diff.
const (
	maxTreeBytes   = 256 << 20 // of contents that are read in all; as much as a workspace may begin with
	maxTreeEntries = 100_000   // files, directories and links that are looked at
	maxTreeNames   = 32 << 20  // bytes of their paths
	maxTreeDepth   = 100       // directories in each other
	readTogether   = 16        // files, or directories, at a time: most are so small that the way takes longer
)

// toolLeftovers are rules, as of a .gitignore file, for files that tools leave behind in a work directory. Diff omits
// new files that match them. In earlier versions, the work directory was the home directory.
const toolLeftovers = "/.cache/\n/.local/\n/.npm/\n/.bash_history\n/.python_history\n/.node_repl_history\n__pycache__/\nnode_modules/\n"

// SpecialFile is the reason why ReadTree and Diff omit pipes, sockets, and devices.
const SpecialFile = "neither a file nor a link"

// LeasedFile is the reason why ReadTree and Diff omit files on which a process has a lease.
const LeasedFile = "a process has a lease on the file"

// ReadTree reads the files below the work directory whose path want reports true for, with the targets of such links.
// Directories that enter reports false for are not looked into; version control's and Workcell's own never are. What
// cannot be read, or is too much, is omitted, with the reason.
func (s *Sandbox) ReadTree(ctx context.Context, enter, want func(path string) bool) (tree patch.Tree, omitted []patch.Conflict, err error) {
	ctx, span := s.start(ctx, telemetry.SpanReadTree)
	defer func() { s.end(span, "ReadTree", &err) }()
	r := s.treeReader()
	var found []FileInfo
	err = r.walk(ctx, func(entries []FileInfo) (below []string, err error) {
		for _, e := range entries {
			switch {
			case e.Type == TypeDir && enter(e.Path):
				below = append(below, e.Path)
			case e.Type != TypeDir && want(e.Path):
				found = append(found, e)
			}
		}
		return below, nil
	})
	if err == nil {
		err = r.read(ctx, found)
	}
	span.SetAttributes(telemetry.KeyEntries.Int(len(r.tree)))
	return r.tree, r.omitted, err
}

// Diff returns what differs in the work directory from a tree that it began as. Files that base has not are left out
// where .gitignore files of the work directory say so, and by toolLeftovers, unless those take them in again. What
// cannot be read, or is too much, is in Patch.Omitted and never looks deleted.
func (s *Sandbox) Diff(ctx context.Context, base patch.Tree) (p *patch.Patch, err error) {
	ctx, span := s.start(ctx, telemetry.SpanDiff)
	defer func() { s.end(span, "Diff", &err) }()
	d := &differ{treeReader: s.treeReader(), base: base, dirs: map[string]bool{}, seen: map[string]bool{}}
	for name := range base {
		for dir := path.Dir(name); dir != "." && !d.dirs[dir]; dir = path.Dir(dir) {
			d.dirs[dir] = true
		}
	}
	d.ignored.Add(".", toolLeftovers)
	if err := d.walk(ctx, func(entries []FileInfo) ([]string, error) { return d.visit(ctx, entries) }); err != nil {
		return nil, err
	}
	if err := d.compare(ctx); err != nil {
		return nil, err
	}
	p = patch.Compare(base, d.tree)
	p.Omitted = d.omitted
	span.SetAttributes(telemetry.KeyEntries.Int(len(p.Changes)))
	return p, nil
}

// treeReader reads files of a work directory into a tree.
type treeReader struct {
	s       *Sandbox
	left    int64 // bytes that may still be read
	tree    patch.Tree
	omitted []patch.Conflict
	unread  map[string]bool // directories that were not looked into, or not in full
	entries int             // that were listed
	names   int             // bytes of their paths
}

func (s *Sandbox) treeReader() treeReader {
	return treeReader{s: s, left: maxTreeBytes, tree: patch.Tree{}, unread: map[string]bool{}}
}

func (r *treeReader) omit(name, reason string) {
	r.omitted = append(r.omitted, patch.Conflict{Path: name, Reason: reason})
}

// walk lists the work directory level by level, a few directories at a time. visit gets what a directory holds, and
// returns the directories among that to list next.
func (r *treeReader) walk(ctx context.Context, visit func([]FileInfo) ([]string, error)) error {
	for level := []string{"."}; len(level) > 0; {
		var next []string
		for batch := range slices.Chunk(level, readTogether) {
			lists := make([]FileList, len(batch))
			errs := bound.Each(readTogether, indices(batch), func(i int) (err error) {
				lists[i], err = r.s.list(ctx, batch[i], ListFilesOptions{Limit: MaxListEntries})
				return err
			})
			for i, dir := range batch {
				entries, err := r.listed(ctx, dir, lists[i], errs[i])
				if err != nil {
					return err
				}
				below, err := visit(entries)
				if err != nil {
					return err
				}
				next = append(next, below...)
			}
		}
		level = next
	}
	return nil
}

// listed returns what a directory holds that a tree can have.
func (r *treeReader) listed(ctx context.Context, dir string, list FileList, err error) ([]FileInfo, error) {
	switch {
	case ctx.Err() != nil: // listing may have ended before, and sorting takes its time
		return nil, ctx.Err()
	case err == nil:
	case unreadable(err) && dir != ".":
		r.skipDir(dir, reason(err))
		return nil, nil
	case errors.Is(err, backend.ErrNotFound) && dir != ".": // removed meanwhile
		return nil, nil
	default:
		return nil, err
	}
	if list.Truncated {
		r.skipDir(dir, fmt.Sprintf("the directory contains more than %d files", MaxListEntries))
	}
	if r.entries += len(list.Entries); r.entries > maxTreeEntries {
		return nil, fmt.Errorf("%w: the workspace contains more than %d files and directories", backend.ErrTooLarge, maxTreeEntries)
	}
	for _, e := range list.Entries {
		r.names += len(e.Path) + len(e.RawPath)
	}
	if r.names > maxTreeNames {
		return nil, fmt.Errorf("%w: the paths in the workspace have more than %d bytes", backend.ErrTooLarge, maxTreeNames)
	}
	return r.usable(dir, list.Entries), nil
}

func (r *treeReader) skipDir(dir, why string) {
	r.unread[dir] = true
	r.omit(dir, why)
}

// isUnread reports whether a path may be there without having been seen.
func (r *treeReader) isUnread(name string) bool {
	for dir := path.Dir(name); !r.unread[dir]; dir = path.Dir(dir) {
		if dir == "." {
			return false
		}
	}
	return true
}

// usable returns the entries of a directory that a tree can have.
func (r *treeReader) usable(dir string, entries []FileInfo) []FileInfo {
	list := entries[:0]
	for _, e := range entries {
		switch {
		case len(e.RawPath) > 0:
			r.omit(e.Path, "its name is not UTF-8")
		case !fs.ValidPath(e.Path) || path.Dir(e.Path) != dir: // a sandbox may answer anything
		case patch.IsPrivate(e.Path):
		case e.Type == TypeDir && strings.Count(e.Path, "/") >= maxTreeDepth:
			r.skipDir(e.Path, fmt.Sprintf("the path has more than %d directories", maxTreeDepth))
		default:
			list = append(list, e)
		}
	}
	return list
}

// read adds files and links to the tree.
func (r *treeReader) read(ctx context.Context, files []FileInfo) error {
	var links, small []FileInfo
	for _, e := range files {
		switch {
		case e.Type == TypeSymlink:
			links = append(links, e)
		case e.Type != TypeFile:
			r.omit(e.Path, SpecialFile)
		case e.Size > r.left:
			r.omit(e.Path, fmt.Sprintf("%d bytes would exceed the total limit of %d", e.Size, int64(maxTreeBytes)))
		default:
			r.left -= e.Size
			small = append(small, e)
		}
	}
	contents := make([][]byte, len(small))
	errs := bound.Each(readTogether, indices(small), func(i int) (err error) {
		contents[i], err = r.s.content(ctx, small[i])
		return err
	})
	for i, e := range small {
		switch err := errs[i]; {
		case err == nil:
			r.tree[e.Path] = patch.Entry{Mode: e.Mode.Perm(), Content: contents[i]}
		case errors.Is(err, backend.ErrNotFound): // removed meanwhile
		case unreadable(err):
			r.omit(e.Path, reason(err))
		default:
			return err
		}
	}
	return r.digests(ctx, links, func(e FileInfo, d wire.Digest) {
		if len(d.Target) == 0 {
			r.omit(e.Path, "cannot read the link")
			return
		}
		r.tree[e.Path] = patch.NewLink(d.Target)
	})
}

// digests calls fn with the digest of each entry. A guest of an earlier version has none: they are empty.
func (r *treeReader) digests(ctx context.Context, list []FileInfo, fn func(FileInfo, wire.Digest)) error {
	for len(list) > 0 {
		batch := list[:min(len(list), wire.MaxDigests)]
		list = list[len(batch):]
		req := wire.DigestRequest{}
		for _, e := range batch {
			req.Paths = append(req.Paths, e.Path)
		}
		answer, err := ask(ctx, r.s, true, fileAnswerLimit, func(ctx context.Context, conn *client.Conn) (wire.DigestResult, error) {
			return conn.Digest(ctx, req)
		})
		switch err = publicError(err); {
		case errors.Is(err, backend.ErrUnsupported):
			answer.Digests = make([]wire.Digest, len(batch))
		case err != nil:
			return err
		}
		for i, e := range batch {
			fn(e, answer.Digests[i])
		}
	}
	return nil
}

// unreadable reports whether an error is about one path alone.
func unreadable(err error) bool {
	return errors.Is(err, backend.ErrPermission) || errors.Is(err, backend.ErrInvalid) ||
		errors.Is(err, backend.ErrTooLarge) || errors.Is(err, backend.ErrBusy)
}

func reason(err error) string {
	switch {
	case errors.Is(err, backend.ErrTooLarge):
		return "the file grew while it was read"
	case errors.Is(err, backend.ErrBusy):
		return LeasedFile
	}
	return "cannot read the file"
}

func indices[T any](list []T) []int {
	out := make([]int, len(list))
	for i := range out {
		out[i] = i
	}
	return out
}

// content reads a file that has not grown since it was listed.
func (s *Sandbox) content(ctx context.Context, e FileInfo) ([]byte, error) {
	var buf bytes.Buffer
	buf.Grow(int(e.Size)) // which is part of what may be read in all
	dst := &cappedWriter{w: &buf, left: e.Size, limit: e.Size}
	_, err := ask(ctx, s, false, transferLimit, func(ctx context.Context, conn *client.Conn) (wire.FileInfo, error) {
		return conn.GetFile(ctx, wire.FileGetRequest{Path: e.Path, Length: e.Size + 1}, dst)
	})
	if dst.err != nil {
		err = dst.err
	}
	return buf.Bytes(), publicError(err)
}

// differ compares a work directory with the tree that it began as.
type differ struct {
	treeReader
	base    patch.Tree
	dirs    map[string]bool // of base
	seen    map[string]bool // paths of base that are there
	ignored patch.Ignorer
	alike   []FileInfo // files of base's that have the size they had
	changed []FileInfo // what is to be read
}

// visit sorts what a directory holds.
func (d *differ) visit(ctx context.Context, entries []FileInfo) (below []string, err error) {
	for _, e := range entries {
		if e.Type == TypeFile && path.Base(e.Path) == patch.IgnoreFile {
			if err := d.rules(ctx, e); err != nil {
				return nil, err
			}
		}
	}
	for _, e := range entries {
		if err := errors.Join(ctx.Err(), d.ignoring()); err != nil {
			return nil, err
		}
		old, known := d.base[e.Path]
		switch {
		case e.Type == TypeDir:
			if d.dirs[e.Path] || !d.ignored.IgnoresDir(e.Path) {
				below = append(below, e.Path)
			}
			continue
		case !known && d.ignored.Ignores(e.Path):
		case known && e.Type == TypeFile && old.Mode&fs.ModeSymlink == 0 && e.Size == int64(len(old.Content)):
			d.alike = append(d.alike, e)
		default:
			d.changed = append(d.changed, e)
		}
		d.seen[e.Path] = known
	}
	return below, nil
}

// rules adds what a .gitignore file leaves out.
func (d *differ) rules(ctx context.Context, e FileInfo) error {
	if e.Size > maxIgnoreFile {
		return fmt.Errorf("%w: %s has %d bytes, the limit is %d", backend.ErrTooLarge, e.Path, e.Size, maxIgnoreFile)
	}
	text, err := d.s.content(ctx, e)
	if err != nil && !unreadable(err) && !errors.Is(err, backend.ErrNotFound) {
		return err
	}
	d.ignored.Add(path.Dir(e.Path), string(text))
	return d.ignoring()
}

// ignoring returns an error when the rules of the work directory pass a bound.
func (d *differ) ignoring() error {
	if err := d.ignored.Err(); err != nil {
		return fmt.Errorf("%w: the workspace has %v", backend.ErrTooLarge, err)
	}
	return nil
}

// maxIgnoreFile is the largest .gitignore file that is read; those of projects have some hundred bytes.
const maxIgnoreFile = 1 << 20

// compare completes the tree: files that are as they were without reading them.
func (d *differ) compare(ctx context.Context) error {
	err := d.digests(ctx, d.alike, func(e FileInfo, now wire.Digest) {
		old := d.base[e.Path]
		if sum := sha256.Sum256(old.Content); bytes.Equal(sum[:], now.SHA256) {
			d.tree[e.Path] = patch.Entry{Mode: e.Mode.Perm(), Content: old.Content}
			return
		}
		d.changed = append(d.changed, e)
	})
	if err != nil {
		return err
	}
	if err := d.read(ctx, d.changed); err != nil {
		return err
	}
	for _, o := range d.omitted { // what was not read is taken to be as it was
		if old, ok := d.base[o.Path]; ok {
			d.tree[o.Path] = old
		}
	}
	for name, old := range d.base {
		if !d.seen[name] && d.isUnread(name) {
			d.tree[name] = old
		}
	}
	return nil
}
