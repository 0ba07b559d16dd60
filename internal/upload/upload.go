// Package upload copies a directory of the host into a sandbox.
//
// What is copied is bounded and known before the first byte goes over: a directory that is too large is refused as a
// whole. Symbolic links are neither followed nor copied, so nothing outside the directory gets into the sandbox; nor
// are version control's own directories, sockets, devices and pipes.
package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// Defaults of Options.
const (
	DefaultMaxFiles = 10_000
	DefaultMaxBytes = 256 << 20
)

// parallel is how many files are under way at once: enough to hide the round trip of small ones.
const parallel = 8

// Destination is where files go. A *session.Session is one.
type Destination interface {
	WriteFile(ctx context.Context, path string, r io.Reader, opts session.WriteFileOptions) (session.FileInfo, error)
	MakeDir(ctx context.Context, path string, mode fs.FileMode) (session.FileInfo, error)
}

// Options refine Dir. The zero value of a field means what its comment says.
type Options struct {
	MaxFiles int   // most files and directories; zero is DefaultMaxFiles
	MaxBytes int64 // most bytes in all; zero is DefaultMaxBytes
}

// Stats says what was copied.
type Stats struct {
	Files   int
	Bytes   int64
	Skipped []string // links and special files, by their path below the directory
}

// Dir copies what is in dir to the root of dst. Files that are there are replaced, others stay. The error wraps
// backend.ErrTooLarge when dir passes a bound, and backend.ErrInvalid when it is no directory; then nothing was copied.
func Dir(ctx context.Context, dst Destination, dir string, opts *Options) (Stats, error) {
	root, t, err := open(ctx, dir, opts)
	if err != nil {
		return Stats{}, err
	}
	defer root.Close() // only read from
	if err := t.copy(ctx, dst, root); err != nil {
		return Stats{}, err
	}
	return t.stats(), nil
}

// Check tells what Dir would copy, and fails as Dir would before it copies.
func Check(ctx context.Context, dir string, opts *Options) (Stats, error) {
	root, t, err := open(ctx, dir, opts)
	if err != nil {
		return Stats{}, err
	}
	defer root.Close() // only read from
	return t.stats(), nil
}

// open surveys a directory; the caller must close the root.
func open(ctx context.Context, dir string, opts *Options) (*os.Root, *tree, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.MaxFiles <= 0 {
		o.MaxFiles = DefaultMaxFiles
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, unreadable(err)
	}
	t, err := survey(ctx, root.FS(), o)
	if err != nil {
		root.Close() // only read from
		return nil, nil, err
	}
	return root, t, nil
}

// unreadable tells why a directory cannot be copied, without its path: the error may reach a model.
func unreadable(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("%w: the directory that is to be copied into the sandbox: %v", backend.ErrInvalid, err)
}

// tree is what a directory holds.
type tree struct {
	dirs    []entry
	files   []entry
	bytes   int64
	skipped []string
}

type entry struct {
	path string
	mode fs.FileMode
	size int64
}

// survey lists the directory without opening a file, and refuses it when it passes a bound.
func survey(ctx context.Context, fsys fs.FS, o Options) (*tree, error) {
	t := &tree{}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("%w: workspace: %v", backend.ErrInvalid, err)
		}
		if ctx.Err() != nil || name == "." {
			return ctx.Err()
		}
		if d.IsDir() && leftOut(name) {
			return fs.SkipDir
		}
		if err := t.add(name, d); err != nil {
			return err
		}
		switch {
		case len(t.files)+len(t.dirs) > o.MaxFiles:
			return fmt.Errorf("%w: the workspace has more than %d files and directories", backend.ErrTooLarge, o.MaxFiles)
		case t.bytes > o.MaxBytes:
			return fmt.Errorf("%w: the workspace has more than %d bytes", backend.ErrTooLarge, o.MaxBytes)
		}
		return nil
	})
	return t, err
}

func (t *tree) add(name string, d fs.DirEntry) error {
	if !utf8.ValidString(name) || !d.IsDir() && !d.Type().IsRegular() {
		t.skipped = append(t.skipped, name)
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return fmt.Errorf("%w: workspace: %v", backend.ErrInvalid, err)
	}
	e := entry{path: name, mode: info.Mode().Perm() &^ 0o022, size: info.Size()}
	if d.IsDir() {
		e.mode |= 0o700
		t.dirs = append(t.dirs, e)
		return nil
	}
	e.mode |= 0o600
	t.files = append(t.files, e)
	t.bytes += e.size
	return nil
}

// leftOut names the directories that are not part of a project's files: version control's at any depth, and what
// Workcell itself keeps in a workspace.
func leftOut(name string) bool {
	return slices.Contains([]string{".git", ".hg", ".svn"}, path.Base(name)) || name == ".workcell"
}

// copy writes directories, which are few, in order, and files side by side.
func (t *tree) copy(ctx context.Context, dst Destination, root *os.Root) error {
	for _, d := range t.dirs {
		if _, err := dst.MakeDir(ctx, d.path, d.mode); err != nil {
			return fmt.Errorf("workspace: %s: %w", d.path, err)
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, f := range t.files {
		group.Go(func() error {
			if err := copyFile(gctx, dst, root, f); err != nil {
				return fmt.Errorf("workspace: %s: %w", f.path, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func (t *tree) stats() Stats {
	return Stats{Files: len(t.files), Bytes: t.bytes, Skipped: t.skipped}
}

func copyFile(ctx context.Context, dst Destination, root *os.Root, f entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	src, err := root.Open(f.path)
	if err != nil {
		return fmt.Errorf("%w: %v", backend.ErrInvalid, err)
	}
	defer src.Close() // only read from
	// What was surveyed was bounded; what was appended since is not copied.
	_, err = dst.WriteFile(ctx, f.path, io.LimitReader(src, f.size), session.WriteFileOptions{Mode: f.mode, Overwrite: true})
	return err
}
