// Package transfer copies files and directories between the host and a sandbox, in both directions.
//
// Either side may change after it was listed. Therefore all copies are bounded, names from a sandbox cannot lead
// outside the destination, and a file is written completely or not at all. One copy may have 10,000 entries, 16 GiB,
// and files up to 1 GiB.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Limits of one copy.
const (
	maxEntries = sandbox.MaxListEntries
	maxFile    = sandbox.DefaultMaxFileBytes
	maxBytes   = 16 << 30
	parallel   = 16 // number of concurrent file copies
)

// Event is the progress of a copy.
type Event struct {
	Path           string // path of the current file, relative to the source
	Entry, Entries int    // current entry and number of entries of a directory; zero for one large file
	Bytes, Size    int64  // bytes copied so far and file size; Size is not positive if unknown
}

// Observer receives the events of a copy. Both functions are required and may be called concurrently. A nil function
// causes a panic.
type Observer struct {
	Progress func(Event)
	Failed   func(path string, reason error) // path could not be copied; other entries are still copied
}

// Out copies a sandbox path to a host path. arg is the sandbox path as the user wrote it. If dst is "-", Out writes to
// stdout.
func Out(ctx context.Context, s *session.Session, arg, path, dst string, stdout io.Writer, see Observer) error {
	from, err := newSandboxSource(ctx, s, arg, path)
	if err != nil {
		return err
	}
	to, err := openTarget(stdout, dst)
	if err != nil {
		return err
	}
	return (&copying{from: from, to: to, see: see}).run(ctx)
}

// In copies a host path to a sandbox path. arg is the sandbox path as the user wrote it. If src is "-", In reads stdin.
func In(ctx context.Context, s *session.Session, src string, stdin io.Reader, arg, path string, see Observer) error {
	from, err := openSource(stdin, src)
	if err != nil {
		return err
	}
	to, err := newSandboxTarget(ctx, s, arg, path)
	if err != nil {
		return errors.Join(err, from.close())
	}
	return (&copying{from: from, to: to, see: see}).run(ctx)
}

// entry is a file or directory to copy. path is relative to the source and uses slashes.
type entry struct {
	path string
	kind sandbox.FileType
	mode fs.FileMode
	size int64 // negative if unknown

	unreadable error // reason why it cannot be copied, if known
}

// place is the source or destination of a copy, as the user specified it.
type place struct {
	name     string           // as the user wrote it
	base     string           // name of a source in the parent directory; empty if it has none
	kind     sandbox.FileType // type of an existing destination, else empty
	dirOnly  bool             // the name can only be a directory
	contents bool             // the name means the contents of a directory
}

// source provides files.
type source interface {
	place() place
	self() entry                                                    // the source itself; links are followed
	list(ctx context.Context) ([]entry, error)                      // everything below a directory, parents first
	open(ctx context.Context, e entry) (r io.ReadCloser, err error) // a file; an empty path means the source itself
	close() error
}

// target receives files. Names are relative to the destination. An empty name means the destination itself.
type target interface {
	place() place
	// enter creates a directory if it does not exist. Later names are relative to it.
	enter(ctx context.Context, name string, mode fs.FileMode) error
	mkdir(ctx context.Context, name string, mode fs.FileMode) error
	// write creates or replaces a file, completely or not at all.
	write(ctx context.Context, name string, e entry, r io.Reader) error
	close() error
}

// copying is a running copy.
type copying struct {
	from source
	to   target
	see  Observer

	copied atomic.Int64 // bytes; canceled reads may still count
	failed int
}

// run applies the rules for directories and copies.
func (c *copying) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, c.to.close(), c.from.close()) }()
	switch self := c.from.self(); self.kind {
	case sandbox.TypeFile:
		return c.file(ctx, self)
	case sandbox.TypeDir:
		return c.tree(ctx, self)
	}
	err = fmt.Errorf("%s is neither a file nor a directory", c.from.place().name)
	return hint.New(hint.Failed, err, "use - for stdin")
}

// file copies a single file.
func (c *copying) file(ctx context.Context, self entry) error {
	from, to, name := c.from.place(), c.to.place(), ""
	switch {
	case to.kind == sandbox.TypeDir && from.base == "":
		return hint.New(hint.Usage, fmt.Errorf("%s is a directory", to.name), "specify the file to write")
	case to.kind == sandbox.TypeDir:
		name = from.base
	case to.dirOnly:
		return hint.New(hint.Failed, fmt.Errorf("%s is not a directory", to.name),
			"create the directory, or remove the part after its name")
	}
	self.path = ""
	return copyError(from.name, c.one(ctx, self, name))
}

// tree copies a directory. It reports failed entries and continues.
func (c *copying) tree(ctx context.Context, self entry) error {
	from, to := c.from.place(), c.to.place()
	if to.kind == sandbox.TypeFile {
		return hint.New(hint.Usage, fmt.Errorf("%s is a directory, %s is not", from.name, to.name), "")
	}
	entries, err := c.from.list(ctx)
	if err != nil {
		return copyError(from.name, err)
	}
	var size int64
	for _, e := range entries {
		size += max(e.size, 0)
	}
	if size > maxBytes {
		const gib = float64(1 << 30)
		err := fmt.Errorf("%s has %.1f GiB, the limit of one copy is %.1f GiB", from.name, float64(size)/gib, maxBytes/gib)
		return hint.New(hint.Failed, err, "copy its subdirectories separately")
	}
	name := ""
	if to.kind == sandbox.TypeDir && !from.contents {
		name = from.base
	}
	if err := c.to.enter(ctx, name, self.mode); err != nil {
		return copyError(to.name, err)
	}
	if err := c.below(ctx, entries); err != nil {
		return err
	}
	if c.failed > 0 {
		return hint.New(hint.Failed, fmt.Errorf("%d of %d files and directories were not copied", c.failed, len(entries)), "")
	}
	return nil
}

// below copies everything below a directory. After the last copy, it reports the failed entries in order.
func (c *copying) below(ctx context.Context, entries []entry) error {
	reasons := make([]error, len(entries))
	var begun atomic.Int64
	err := inWaves(ctx, entries, func(ctx context.Context, i int) error {
		e := entries[i]
		c.see.Progress(Event{Path: e.path, Entry: int(begun.Add(1)), Entries: len(entries), Bytes: c.copied.Load()})
		err := c.entry(ctx, e)
		if err != nil && (ctx.Err() != nil || isFatal(err)) {
			return err
		}
		reasons[i] = err
		return nil
	})
	for i, reason := range reasons {
		if reason != nil {
			c.failed++
			c.see.Failed(entries[i].path, cause(reason))
		}
	}
	return err
}

// inWaves calls fn concurrently with the index of each entry. Most files are small, so latency dominates. A directory
// is copied before its contents. inWaves stops at the first error.
func inWaves(ctx context.Context, entries []entry, fn func(ctx context.Context, i int) error) error {
	for _, wave := range waves(entries) {
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(parallel)
		for _, i := range wave {
			g.Go(func() error {
				if gctx.Err() != nil {
					return gctx.Err()
				}
				return fn(gctx, i)
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// waves groups the indices of entries to copy concurrently: the directories of each depth, then all other entries.
func waves(entries []entry) [][]int {
	depths := map[int][]int{}
	var rest []int
	for i, e := range entries {
		if e.kind == sandbox.TypeDir {
			depth := strings.Count(e.path, "/")
			depths[depth] = append(depths[depth], i)
		} else {
			rest = append(rest, i)
		}
	}
	var all [][]int
	for _, depth := range slices.Sorted(maps.Keys(depths)) {
		all = append(all, depths[depth])
	}
	return append(all, rest)
}

// entry copies one entry below a directory.
func (c *copying) entry(ctx context.Context, e entry) error {
	if !filepath.IsLocal(filepath.FromSlash(e.path)) { // a sandbox may send any name
		return fmt.Errorf("%w: the name leads outside the directory", backend.ErrPermission)
	}
	if e.unreadable != nil {
		return e.unreadable
	}
	switch e.kind {
	case sandbox.TypeFile:
		return c.one(ctx, e, e.path)
	case sandbox.TypeDir:
		return c.to.mkdir(ctx, e.path, e.mode)
	case sandbox.TypeSymlink:
		return errors.New("not copied: a link")
	}
	return errors.New("not copied: neither a file nor a directory")
}

// one copies the contents of a file.
func (c *copying) one(ctx context.Context, e entry, name string) error {
	if e.size > maxFile {
		return fmt.Errorf("%w: the file has %d bytes, the limit is %d", backend.ErrTooLarge, e.size, maxFile)
	}
	r, err := c.from.open(ctx, e)
	if err != nil {
		return err
	}
	err = c.to.write(ctx, name, e, &meter{c: c, r: r, name: name, size: e.size})
	_ = r.Close() // only read from
	if errors.Is(err, errGrown) {
		e.size = -1
		return c.one(ctx, e, name)
	}
	return err
}

// meter counts and limits the copied bytes, because a sandbox may send more than it listed.
type meter struct {
	c    *copying
	r    io.Reader
	name string
	size int64
	seen int64 // bytes of this file
}

// showEvery is how many bytes of a file are copied between two progress events.
const showEvery = 4 << 20

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	before := m.seen / showEvery
	m.seen += int64(n)
	if m.c.copied.Add(int64(n)) > maxBytes {
		err := fmt.Errorf("%w: more than %.1f GiB in all", backend.ErrTooLarge, float64(maxBytes)/(1<<30))
		return 0, hint.New(hint.Failed, err, "")
	}
	if m.seen/showEvery > before {
		m.c.see.Progress(Event{Path: m.name, Bytes: m.seen, Size: m.size})
	}
	return n, err
}

// isFatal reports whether the copy cannot continue after err.
func isFatal(err error) bool {
	return hint.Of(err) != nil || errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrClosed) ||
		errors.Is(err, backend.ErrUnavailable)
}

// copyError adds the name of the failed entry. A missing file must not look like a missing sandbox.
func copyError(name string, err error) error {
	if err == nil || isFatal(err) || errors.Is(err, context.Canceled) {
		return err
	}
	return hint.New(hint.Failed, fmt.Errorf("%s: %s", name, cause(err)), "")
}

// cause returns the cause of an error without the operation and the path, which the user knows.
func cause(err error) error {
	if op, ok := errors.AsType[*backend.Error](err); ok {
		return op.Err
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}

// pathEnd reports whether the end of a path means a directory, or the contents of a directory.
func pathEnd(p string) (dir, contents bool) {
	slash := func(r rune) bool { return r < 0x80 && os.IsPathSeparator(uint8(r)) }
	last := p[strings.LastIndexFunc(p, slash)+1:]
	return last == "" || last == ".", last == "."
}
