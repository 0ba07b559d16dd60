package main

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

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// Bounds of one copy.
const (
	maxCopyEntries = session.MaxListEntries
	maxCopyFile    = session.DefaultMaxFileBytes
	maxCopyBytes   = 16 << 30
	copyTogether   = 16 // files that are under way at a time
)

func newSessionsCpCmd(a *app) *cobra.Command {
	var engine engineFlags
	cmd := &cobra.Command{
		Use:   "cp [flags] SANDBOX:PATH FILE|DIR|-, or FILE|DIR|- SANDBOX:PATH",
		Short: "Copy files between a sandbox and here",
		Long: `Copy a file or a directory with all below it out of a sandbox, or into one. The sandbox is named as in
` + "`workcell sessions exec`" + `; PATH lies below /workspace or /tmp. - is standard input or output, for one file. A file here whose
name has a colon is written ./NAME.

Where the destination is a directory, the source goes into it under its own name; SOURCE/. stands for what is in a
directory. Else the destination is the new name, and the directory above it must be there. Files that are there are
replaced, unless the sandbox's user may not write them; others stay.

Permission bits are kept; owners and times are not. A file appears whole or not at all. Below the source, links and
special files are not copied and nothing is read or written through a link that leads outside. What cannot be copied is
named on standard error, the rest is copied, and the exit code is 1. At most 10,000 files and directories of 16 GiB in all,
each at most 1 GiB. /workspace/.workcell is left out unless it is named.`,
		Example: "  workcell sessions cp src/. mybox:src\n  workcell sessions cp mybox:report.csv -\n  workcell sessions cp mybox:/workspace ./result",
		Args:    checkCopyArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withManager(cmd.Context(), engine, imageFlags{}, stateWanted, func(ctx context.Context, m *session.Manager) error {
				return a.copyFiles(ctx, m, args[0], args[1])
			})
		},
	}
	engine.addTo(cmd)
	return cmd
}

func checkCopyArgs(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usageError(errors.New("name a source and a destination"), "workcell sessions cp SANDBOX:PATH FILE, or FILE SANDBOX:PATH")
	}
	if inSandbox(args[0]) == inSandbox(args[1]) {
		return usageError(errors.New("one of source and destination, not both, must be in a sandbox"),
			"write it SANDBOX:PATH; a file here with a colon in its name is ./NAME")
	}
	return nil
}

// inSandbox tells whether an argument has the form SANDBOX:PATH.
func inSandbox(arg string) bool {
	return strings.Contains(arg, ":") && !strings.HasPrefix(arg, ".") && !filepath.IsAbs(arg) && filepath.VolumeName(arg) == ""
}

// copyFiles does one copy.
func (a *app) copyFiles(ctx context.Context, m *session.Manager, src, dst string) (err error) {
	list, err := m.List(ctx)
	if err != nil {
		return err
	}
	remote := src
	if !inSandbox(src) {
		remote = dst
	}
	info, name, err := splitSandboxPath(list, remote)
	if err != nil {
		return err
	}
	s, err := m.Connect(ctx, info.ID)
	if err != nil {
		return err
	}
	c := &copying{}
	if inSandbox(src) {
		if c.from, err = newSandboxSource(s, src, name); err == nil {
			c.to, err = openTarget(a.stdout, dst)
		}
	} else if c.from, err = openSource(a.stdin, src); err == nil {
		c.to, err = newSandboxTarget(ctx, s, dst, name)
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return err
	}
	c.progress = newProgress(a.stderr)
	defer c.progress.Close()
	return c.run(ctx)
}

// splitSandboxPath finds the sandbox that SANDBOX:PATH begins with. Keys have colons too, so the longest name wins.
func splitSandboxPath(list []session.Info, arg string) (session.Info, string, error) {
	var names []string
	for at := strings.LastIndexByte(arg, ':'); at >= 0; at = strings.LastIndexByte(arg[:at], ':') {
		info, err := findSandbox(list, arg[:at])
		if err == nil || !errors.Is(err, backend.ErrNotFound) {
			return info, arg[at+1:], err
		}
		names = append(names, arg[:at])
	}
	return session.Info{}, "", &unknownSandbox{fmt.Sprintf("no sandbox has the id, key or name that %q begins with", arg), names}
}

// copyEntry is a file or directory to copy. Path is slash-separated and relative to the source.
type copyEntry struct {
	path string
	kind session.FileType
	mode fs.FileMode
	size int64 // negative is unknown

	unreadable error // why it cannot be copied, when that is known
}

// copySource is where files come from.
type copySource interface {
	name() string                                                       // as the user wrote it
	base() string                                                       // name in a directory; empty for what has none of its own
	contents() bool                                                     // it stands for what is in a directory
	stat(ctx context.Context) (copyEntry, error)                        // of the source itself, a link followed
	list(ctx context.Context) ([]copyEntry, error)                      // what is below a directory, parents first
	open(ctx context.Context, e copyEntry) (r io.ReadCloser, err error) // a file; path empty is the source itself
	close() error
}

// copyTarget is where files go. Names are relative to the destination; empty is the destination itself.
type copyTarget interface {
	name() string
	isDir() bool // it is a directory now
	isFile() bool
	mustBeDir() bool // its name says so
	// enter makes a directory where there is none; later names are relative to it.
	enter(ctx context.Context, name string, mode fs.FileMode) error
	mkdir(ctx context.Context, name string, mode fs.FileMode) error
	// write makes or replaces a file, whole or not at all.
	write(ctx context.Context, name string, e copyEntry, r io.Reader) error
	close() error
}

// copying is one copy under way.
type copying struct {
	from     copySource
	to       copyTarget
	progress *progress

	copied atomic.Int64 // bytes; a read that was given up may still count
	failed int
}

func (c *copying) close() error {
	var errs []error
	if c.to != nil {
		errs = append(errs, c.to.close())
	}
	if c.from != nil {
		errs = append(errs, c.from.close())
	}
	return errors.Join(errs...)
}

// run applies the rules about directories and copies.
func (c *copying) run(ctx context.Context) error {
	self, err := c.from.stat(ctx)
	if err != nil {
		return copyError(c.from.name(), err)
	}
	switch self.kind {
	case session.TypeFile:
		return c.file(ctx, self)
	case session.TypeDir:
		return c.tree(ctx, self)
	}
	return fail(exitFailed, fmt.Errorf("%s is neither a file nor a directory", c.from.name()), "- is standard input, for what a program writes")
}

// file copies a single file.
func (c *copying) file(ctx context.Context, self copyEntry) error {
	name := ""
	if c.to.isDir() {
		if name = c.from.base(); name == "" {
			return usageError(fmt.Errorf("%s is a directory", c.to.name()), "name the file that is to be written")
		}
	} else if c.to.mustBeDir() {
		return fail(exitFailed, fmt.Errorf("%s is not a directory", c.to.name()), "make it first, or leave out what follows its name")
	}
	self.path = ""
	return copyError(c.from.name(), c.one(ctx, self, name))
}

// tree copies a directory. What cannot be copied is named and passed over.
func (c *copying) tree(ctx context.Context, self copyEntry) error {
	if c.to.isFile() {
		return usageError(fmt.Errorf("%s is a directory, %s is not", c.from.name(), c.to.name()), "")
	}
	entries, err := c.from.list(ctx)
	if err != nil {
		return copyError(c.from.name(), err)
	}
	var size int64
	for _, e := range entries {
		size += max(e.size, 0)
	}
	if size > maxCopyBytes {
		return fail(exitFailed, fmt.Errorf("%s has %s, at most %s are copied at once", c.from.name(), byteSize(size), byteSize(maxCopyBytes)),
			"copy the directories in it one by one")
	}
	name := ""
	if c.to.isDir() && !c.from.contents() {
		name = c.from.base()
	}
	if err := c.to.enter(ctx, name, self.mode); err != nil {
		return copyError(c.to.name(), err)
	}
	if err := c.below(ctx, entries); err != nil {
		return err
	}
	if c.failed > 0 {
		return fail(exitFailed, fmt.Errorf("%d of %d files and directories were not copied", c.failed, len(entries)), "")
	}
	return nil
}

// below copies what is below a directory, many files at a time: most are so small that the way to the sandbox takes longer
// than they do. A directory is there before anything goes into it. Reasons why something was not copied come at the end,
// in the order of the entries.
func (c *copying) below(ctx context.Context, entries []copyEntry) error {
	reasons := make([]error, len(entries))
	var begun atomic.Int64
	var err error
	for _, wave := range waves(entries) {
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(copyTogether)
		for _, i := range wave {
			g.Go(func() error {
				if gctx.Err() != nil {
					return gctx.Err()
				}
				e := entries[i]
				c.progress.Status(fmt.Sprintf("copying %d of %d, %s: %s", begun.Add(1), len(entries), byteSize(c.copied.Load()), e.path))
				err := c.entry(gctx, e)
				if err != nil && (gctx.Err() != nil || isFatal(err)) {
					return err
				}
				reasons[i] = err
				return nil
			})
		}
		if err = g.Wait(); err != nil {
			break
		}
	}
	for i, reason := range reasons {
		if reason != nil {
			c.failed++
			c.progress.Line("workcell: %s: %s", entries[i].path, copyText(reason))
		}
	}
	return err
}

// waves gives the indices of entries that can be copied together: the directories of each depth, then all else.
func waves(entries []copyEntry) [][]int {
	depths := map[int][]int{}
	var rest []int
	for i, e := range entries {
		if e.kind == session.TypeDir {
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
func (c *copying) entry(ctx context.Context, e copyEntry) error {
	if !filepath.IsLocal(filepath.FromSlash(e.path)) { // a sandbox may say anything
		return fmt.Errorf("%w: the name leads outside", backend.ErrPermission)
	}
	if e.unreadable != nil {
		return e.unreadable
	}
	switch e.kind {
	case session.TypeFile:
		return c.one(ctx, e, e.path)
	case session.TypeDir:
		return c.to.mkdir(ctx, e.path, e.mode)
	case session.TypeSymlink:
		return errors.New("not copied: a link")
	}
	return errors.New("not copied: neither a file nor a directory")
}

// one copies the contents of a file.
func (c *copying) one(ctx context.Context, e copyEntry, name string) error {
	if e.size > maxCopyFile {
		return fmt.Errorf("%w: the file has %d bytes, at most %d are copied", backend.ErrTooLarge, e.size, maxCopyFile)
	}
	r, err := c.from.open(ctx, e)
	if err != nil {
		return err
	}
	err = c.to.write(ctx, name, e, &copyMeter{c: c, r: r, name: name, size: e.size})
	_ = r.Close() // only read from
	if errors.Is(err, errGrown) {
		e.size = -1
		return c.one(ctx, e, name)
	}
	return err
}

// copyMeter counts what is copied and bounds it: a sandbox may have more to give than it said.
type copyMeter struct {
	c    *copying
	r    io.Reader
	name string
	size int64
	seen int64 // of this file
}

// showEvery is how many bytes of a file pass between two looks at the progress.
const showEvery = 4 << 20

func (m *copyMeter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	before := m.seen / showEvery
	m.seen += int64(n)
	if m.c.copied.Add(int64(n)) > maxCopyBytes {
		return 0, fail(exitFailed, fmt.Errorf("%w: more than %s in all", backend.ErrTooLarge, byteSize(maxCopyBytes)), "")
	}
	if m.seen/showEvery > before {
		text := fmt.Sprintf("copying %s: %s", m.name, byteSize(m.seen))
		if m.size > 0 {
			text += " of " + byteSize(m.size)
		}
		m.c.progress.Status(text)
	}
	return n, err
}

// isFatal tells whether nothing more can be copied after err.
func isFatal(err error) bool {
	var ce *cliError
	return errors.As(err, &ce) || errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrClosed) ||
		errors.Is(err, backend.ErrUnavailable)
}

// copyError names what could not be copied. A missing file must not look like a missing sandbox.
func copyError(name string, err error) error {
	if err == nil || isFatal(err) || errors.Is(err, context.Canceled) {
		return err
	}
	return fail(exitFailed, fmt.Errorf("%s: %s", name, copyText(err)), "")
}

// copyText gives the reason without the operation and the place, which the user knows.
func copyText(err error) string {
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
	return err.Error()
}

// pathEnd tells what the end of a path says: that it can only be a directory, or what is in one.
func pathEnd(p string) (dir, contents bool) {
	slash := func(r rune) bool { return r < 0x80 && os.IsPathSeparator(uint8(r)) }
	last := p[strings.LastIndexFunc(p, slash)+1:]
	return last == "" || last == ".", last == "."
}
