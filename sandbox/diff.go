package sandbox

import (
	"bytes"
	"cmp"
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

// Limits of ReadTree and Diff.
const (
	maxTreeBytes   = 256 << 20 // total size of file contents; also the limit of a copied workspace
	maxTreeEntries = 100_000   // files, directories, and links
	maxTreeNames   = 32 << 20  // total size of their paths in bytes
	maxTreeDepth   = 100       // depth of nested directories
	readTogether   = 16        // concurrent files or directories; most are small, so latency dominates
)

// toolLeftovers are rules, as of a .gitignore file, for leftovers of tools in a work directory. Diff omits new files
// with such names. In earlier versions, the work directory was the home directory.
const toolLeftovers = "/.cache/\n/.local/\n/.npm/\n/.bash_history\n/.python_history\n/.node_repl_history\n" +
	"__pycache__/\nnode_modules/\n"

// Reasons why ReadTree and Diff omit entries, except exceeded limits.
const (
	specialFile    = "neither a file nor a link"
	leasedFile     = "a process has a lease on the file"
	notUTF8        = "its name is not UTF-8"
	growing        = "the file grew while it was read"
	unreadableFile = "cannot read the file"
	unreadableLink = "cannot read the link"
)

// Special reports whether this is a reason why ReadTree and Diff omit pipes, sockets, devices, and leased files.
func Special(reason string) bool { return reason == specialFile || reason == leasedFile }

// Repairable reports whether a change in the sandbox, for example of the entry's mode, allows ReadTree to read an entry
// omitted for this reason. The other reasons are exceeded limits.
func Repairable(reason string) bool {
	return slices.Contains([]string{specialFile, leasedFile, notUTF8, growing, unreadableFile, unreadableLink}, reason)
}

// ReadTree reads the files and links in the workspace if want returns true for their paths. It skips directories for
// which enter returns false, and always skips directories of version control and of Workcell. omitted lists unreadable
// and incomplete files and directories for which want or enter returns true, with the reasons. "." is the workspace.
func (s *Sandbox) ReadTree(ctx context.Context, enter, want func(path string) bool) (
	tree patch.Tree, omitted []patch.Conflict, err error) {
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
	r.omitted = slices.DeleteFunc(r.omitted, func(c patch.Conflict) bool {
		return !want(c.Path) && !(r.unread[c.Path] && (c.Path == "." || enter(c.Path)))
	})
	if err == nil {
		err = r.read(ctx, found)
	}
	span.SetAttributes(telemetry.KeyEntries.Int(len(r.tree)))
	return r.tree, r.omitted, err
}

// Diff returns the differences between the workspace and base, the tree at the start. It omits new files matched by
// .gitignore files of the workspace. It also omits new files left behind by tools, unless a .gitignore file includes
// them: the directories .cache, .local, and .npm and the history files of bash, Python, and Node.js in the workspace's
// root, and all directories __pycache__ and node_modules. Patch.Omitted lists unreadable files and files above the
// limits. Diff never reports these files as deleted.
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

// treeReader reads files of a workspace into a tree.
type treeReader struct {
	s       *Sandbox
	left    int64 // remaining bytes
	tree    patch.Tree
	omitted []patch.Conflict
	unread  map[string]bool // incompletely listed directories
	entries int             // number of listed entries
	names   int             // total size of their paths in bytes
}

func (s *Sandbox) treeReader() treeReader {
	return treeReader{s: s, left: maxTreeBytes, tree: patch.Tree{}, unread: map[string]bool{}}
}

func (r *treeReader) omit(name, reason string) {
	r.omitted = append(r.omitted, patch.Conflict{Path: name, Reason: reason})
}

// walk lists the workspace level by level, several directories concurrently. visit receives a directory's entries and
// returns the subdirectories to list next.
func (r *treeReader) walk(ctx context.Context, visit func([]FileInfo) ([]string, error)) error {
	for level := []string{"."}; len(level) > 0; {
		var next []string
		for batch := range slices.Chunk(level, readTogether) {
			lists := make([]FileList, len(batch))
			errs := bound.Each(readTogether, len(batch), func(i int) (err error) {
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

// listed returns the entries of a directory for a tree.
func (r *treeReader) listed(ctx context.Context, dir string, list FileList, err error) ([]FileInfo, error) {
	switch {
	case ctx.Err() != nil: // the listing may have succeeded first, and sorting takes time
		return nil, ctx.Err()
	case err == nil:
	case unreadable(err) && dir != ".":
		r.skipDir(dir, reason(err))
		return nil, nil
	case errors.Is(err, backend.ErrNotFound) && dir != ".": // removed since the parent was listed
		return nil, nil
	default:
		return nil, err
	}
	if list.Truncated {
		r.skipDir(dir, fmt.Sprintf("the directory contains more than %d files", MaxListEntries))
	}
	if r.entries += len(list.Entries); r.entries > maxTreeEntries {
		return nil, fmt.Errorf("%w: the workspace contains more than %d files and directories",
			backend.ErrTooLarge, maxTreeEntries)
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

// isUnread reports whether a path may exist although it was not listed.
func (r *treeReader) isUnread(name string) bool {
	for dir := path.Dir(name); !r.unread[dir]; dir = path.Dir(dir) {
		if dir == "." {
			return false
		}
	}
	return true
}

// usable returns the entries of a directory for a tree, without private and invalid paths.
func (r *treeReader) usable(dir string, entries []FileInfo) []FileInfo {
	list := entries[:0]
	for _, e := range entries {
		switch {
		case len(e.RawPath) > 0:
			r.unread[e.Path] = e.Type == TypeDir
			r.omit(e.Path, notUTF8)
		case !fs.ValidPath(e.Path) || path.Dir(e.Path) != dir: // a sandbox may send any name
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
			r.omit(e.Path, specialFile)
		case e.Size > r.left:
			r.omit(e.Path, fmt.Sprintf("%d bytes would exceed the total limit of %d", e.Size, int64(maxTreeBytes)))
		default:
			r.left -= e.Size
			small = append(small, e)
		}
	}
	contents := make([][]byte, len(small))
	errs := bound.Each(readTogether, len(small), func(i int) (err error) {
		contents[i], err = r.s.content(ctx, small[i])
		return err
	})
	for i, e := range small {
		switch err := errs[i]; {
		case err == nil:
			r.tree[e.Path] = patch.Entry{Mode: e.Mode.Perm(), Content: contents[i]}
		case errors.Is(err, backend.ErrNotFound): // removed since it was listed
		case unreadable(err):
			r.omit(e.Path, reason(err))
		default:
			return err
		}
	}
	return r.digests(ctx, links, func(e FileInfo, d wire.Digest) {
		if len(d.Target) == 0 {
			r.omit(e.Path, unreadableLink)
			return
		}
		r.tree[e.Path] = patch.NewLink(d.Target)
	})
}

// digests calls fn with the digest of each entry. A guest of an earlier version returns empty digests.
func (r *treeReader) digests(ctx context.Context, list []FileInfo, fn func(FileInfo, wire.Digest)) error {
	for len(list) > 0 {
		batch := list[:min(len(list), wire.MaxDigests)]
		list = list[len(batch):]
		req := wire.DigestRequest{}
		for _, e := range batch {
			req.Paths = append(req.Paths, e.Path)
		}
		digest := func(ctx context.Context, conn *client.Conn) (wire.DigestResult, error) { return conn.Digest(ctx, req) }
		answer, err := ask(ctx, r.s, repeatable, fileAnswerLimit, digest)
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

// unreadable reports whether an error concerns only one path.
func unreadable(err error) bool {
	return errors.Is(err, backend.ErrPermission) || errors.Is(err, backend.ErrInvalid) ||
		errors.Is(err, backend.ErrTooLarge) || errors.Is(err, backend.ErrBusy)
}

func reason(err error) string {
	switch {
	case errors.Is(err, backend.ErrTooLarge):
		return growing
	case errors.Is(err, backend.ErrBusy):
		return leasedFile
	}
	return unreadableFile
}

// content reads a file. If the file has grown since it was listed, content returns an error.
func (s *Sandbox) content(ctx context.Context, e FileInfo) ([]byte, error) {
	var buf bytes.Buffer
	buf.Grow(int(e.Size)) // counts against the total size
	dst := &cappedWriter{w: &buf, left: e.Size, limit: e.Size}
	_, err := s.transfer(ctx, func(ctx context.Context, conn *client.Conn) (wire.FileInfo, error) {
		return conn.GetFile(ctx, wire.FileGetRequest{Path: e.Path, Length: e.Size + 1}, dst)
	})
	return buf.Bytes(), publicError(cmp.Or(dst.err, err))
}

// differ compares a workspace with the tree at the start.
type differ struct {
	treeReader
	base    patch.Tree
	dirs    map[string]bool // directories of base
	seen    map[string]bool // existing paths of base
	ignored patch.Ignorer
	alike   []FileInfo // files of base with unchanged size
	changed []FileInfo // files to read
}

// visit classifies the entries of a directory.
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

// rules adds the rules of a .gitignore file.
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

// ignoring returns an error if the rules of the workspace exceed a limit.
func (d *differ) ignoring() error {
	if err := d.ignored.Err(); err != nil {
		return fmt.Errorf("%w: the workspace has %v", backend.ErrTooLarge, err)
	}
	return nil
}

// maxIgnoreFile is the maximum size of a .gitignore file. Typical files have a few hundred bytes.
const maxIgnoreFile = 1 << 20

// compare completes the tree. It does not read unchanged files.
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
	for _, o := range d.omitted { // unread files are treated as unchanged
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
