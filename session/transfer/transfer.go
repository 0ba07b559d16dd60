// Package transfer copies files and directories between the host and a sandbox, both ways.
//
// Neither side is trusted to be what it was when it was listed: what is copied is bounded, names from a sandbox cannot
// lead out of the destination, and a file appears whole or not at all.
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

// Bounds of one copy.
const (
	maxEntries = sandbox.MaxListEntries
	maxFile    = sandbox.DefaultMaxFileBytes
	maxBytes   = 16 << 30
	parallel   = 16 // files that are under way at a time
)

// Event is how far a copy has come.
type Event struct {
	Path           string // what is being copied, relative to the source
	Entry, Entries int    // of a directory; zero for one large file
	Bytes, Size    int64  // of all that was copied, or of the one file; Size may be unknown, not positive
}

// Observer is told of a copy. Both functions are required and may be called concurrently.
type Observer struct {
	Progress func(Event)
	Failed   func(path string, reason error) // path was not copied, the rest is
}

// Out copies a path of a sandbox, which the user wrote as arg, to a path of this machine, or to stdout for "-".
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

// In copies a path of this machine, or stdin for "-", to a path of a sandbox, which the user wrote as arg.
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

// entry is a file or directory to copy. Path is slash-separated and relative to the source.
type entry struct {
	path string
	kind sandbox.FileType
	mode fs.FileMode
	size int64 // negative is unknown

	unreadable error // why it cannot be copied, when that is known
}

// place is one end of a copy, as the user named it.
type place struct {
	name     string           // as the user wrote it
	base     string           // of a source, its name in a directory; empty for what has none of its own
	kind     sandbox.FileType // of a target that exists, else empty
	dirOnly  bool             // its name says that it is a directory
	contents bool             // it stands for what is in a directory
}

// source is where files come from.
type source interface {
	place() place
	self() entry                                                    // the source itself, a link followed
	list(ctx context.Context) ([]entry, error)                      // what is below a directory, parents first
	open(ctx context.Context, e entry) (r io.ReadCloser, err error) // a file; path empty is the source itself
	close() error
}

// target is where files go. Names are relative to the destination; empty is the destination itself.
type target interface {
	place() place
	// enter makes a directory where there is none; later names are relative to it.
	enter(ctx context.Context, name string, mode fs.FileMode) error
	mkdir(ctx context.Context, name string, mode fs.FileMode) error
	// write makes or replaces a file, whole or not at all.
	write(ctx context.Context, name string, e entry, r io.Reader) error
	close() error
}

// copying is one copy under way.
type copying struct {
	from source
	to   target
	see  Observer

	copied atomic.Int64 // bytes; a read that was given up may still count
	failed int
}

// run applies the rules about directories and copies.
func (c *copying) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, c.to.close(), c.from.close()) }()
	switch self := c.from.self(); self.kind {
	case sandbox.TypeFile:
		return c.file(ctx, self)
	case sandbox.TypeDir:
		return c.tree(ctx, self)
	}
	return hint.New(hint.Failed, fmt.Errorf("%s is neither a file nor a directory", c.from.place().name), "use - for stdin")
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
		return hint.New(hint.Failed, fmt.Errorf("%s is not a directory", to.name), "create the directory, or remove the part after its name")
	}
	self.path = ""
	return copyError(from.name, c.one(ctx, self, name))
}

// tree copies a directory. What cannot be copied is named and passed over.
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
		return hint.New(hint.Failed, fmt.Errorf("%s has %.1f GiB, the limit of one copy is %.1f GiB", from.name, float64(size)/(1<<30), float64(maxBytes)/(1<<30)),
			"copy its subdirectories separately")
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

// below copies what is below a directory. Reasons why something was not copied come at the end, in the order of the
// entries.
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

// inWaves calls fn with the index of each entry, many at a time: most files are so small that the way to the sandbox
// takes longer than they do. A directory comes before anything that goes into it. The first error ends it.
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

// waves returns the indices of entries that can be copied together: the directories of each depth, then all else.
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

// entry copies what is below a directory.
func (c *copying) entry(ctx context.Context, e entry) error {
	if !filepath.IsLocal(filepath.FromSlash(e.path)) { // a sandbox may send anything
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

// meter counts what is copied and bounds it: a sandbox may send more than it listed.
type meter struct {
	c    *copying
	r    io.Reader
	name string
	size int64
	seen int64 // of this file
}

// showEvery is how many bytes of a file pass between two looks at the progress.
const showEvery = 4 << 20

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	before := m.seen / showEvery
	m.seen += int64(n)
	if m.c.copied.Add(int64(n)) > maxBytes {
		return 0, hint.New(hint.Failed, fmt.Errorf("%w: more than %.1f GiB in all", backend.ErrTooLarge, float64(maxBytes)/(1<<30)), "")
	}
	if m.seen/showEvery > before {
		m.c.see.Progress(Event{Path: m.name, Bytes: m.seen, Size: m.size})
	}
	return n, err
}

// isFatal reports whether nothing more can be copied after err.
func isFatal(err error) bool {
	return hint.Of(err) != nil || errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrClosed) ||
		errors.Is(err, backend.ErrUnavailable)
}

// copyError names what could not be copied. A missing file must not look like a missing sandbox.
func copyError(name string, err error) error {
	if err == nil || isFatal(err) || errors.Is(err, context.Canceled) {
		return err
	}
	return hint.New(hint.Failed, fmt.Errorf("%s: %s", name, cause(err)), "")
}

// cause returns why something failed without the operation and the place, which the user knows.
func cause(err error) error {
	var op *backend.Error
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &op):
		err = op.Err
	case errors.As(err, &path):
		err = path.Err
	case errors.As(err, &link):
		err = link.Err
	}
	return err
}

// pathEnd reports what the end of a path means: that it can only be a directory, or what is in one.
func pathEnd(p string) (dir, contents bool) {
	slash := func(r rune) bool { return r < 0x80 && os.IsPathSeparator(uint8(r)) }
	last := p[strings.LastIndexFunc(p, slash)+1:]
	return last == "" || last == ".", last == "."
}
