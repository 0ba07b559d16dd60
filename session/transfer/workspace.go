package transfer

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

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// Bounds of a workspace.
const (
	MaxWorkspaceFiles = 10_000
	MaxWorkspaceBytes = 256 << 20
)

// Destination is where the files of a workspace go. A *session.Session is one.
type Destination interface {
	WriteFile(ctx context.Context, path string, r io.Reader, opts session.WriteFileOptions) (session.FileInfo, error)
	MakeDir(ctx context.Context, path string, mode fs.FileMode) (session.FileInfo, error)
}

// Stats says what is copied of a workspace.
type Stats struct {
	Files   int
	Bytes   int64
	Skipped []string // links and special files, by their path below the directory
}

// workspace is a directory of the host that sandboxes begin with a copy of. What is copied is known before the first byte
// goes over: a directory that is too large is refused as a whole. Symbolic links are neither followed nor copied, so nothing
// outside the directory gets into the sandbox; nor are version control's own directories, sockets, devices and pipes.
type workspace struct {
	root    *os.Root
	entries []entry
	stats   Stats
}

// CopyWorkspace copies what is in dir to the root of dst. Files that are there are replaced, others stay. The error wraps
// backend.ErrTooLarge when dir passes a bound, and backend.ErrInvalid when it is no directory; then nothing was copied.
func CopyWorkspace(ctx context.Context, dst Destination, dir string) (Stats, error) {
	return copyWorkspace(ctx, dst, dir, MaxWorkspaceFiles, MaxWorkspaceBytes)
}

func copyWorkspace(ctx context.Context, dst Destination, dir string, maxFiles int, maxBytes int64) (Stats, error) {
	w, err := openWorkspace(ctx, dir, maxFiles, maxBytes)
	if err != nil {
		return Stats{}, err
	}
	defer w.root.Close() // only read from
	if err := inWaves(ctx, w.entries, func(ctx context.Context, i int) error {
		if err := w.copy(ctx, dst, w.entries[i]); err != nil {
			return fmt.Errorf("workspace: %s: %w", w.entries[i].path, err)
		}
		return nil
	}); err != nil {
		return Stats{}, err
	}
	return w.stats, nil
}

// CheckWorkspace returns what CopyWorkspace would copy, and fails as that would before it copies.
func CheckWorkspace(ctx context.Context, dir string) (Stats, error) {
	w, err := openWorkspace(ctx, dir, MaxWorkspaceFiles, MaxWorkspaceBytes)
	if err != nil {
		return Stats{}, err
	}
	defer w.root.Close() // only read from
	return w.stats, nil
}

// openWorkspace lists the directory without opening a file, and refuses it when it passes a bound. The caller must close
// the root.
func openWorkspace(ctx context.Context, dir string, maxFiles int, maxBytes int64) (*workspace, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, unreadable(err)
	}
	w := &workspace{root: root}
	err = walk(ctx, root, func(e entry) error {
		if err := w.add(e); err != nil {
			return err
		}
		switch {
		case len(w.entries) > maxFiles:
			return fmt.Errorf("%w: the workspace has more than %d files and directories", backend.ErrTooLarge, maxFiles)
		case w.stats.Bytes > maxBytes:
			return fmt.Errorf("%w: the workspace has more than %d bytes", backend.ErrTooLarge, maxBytes)
		}
		return nil
	})
	if err != nil {
		root.Close() // only read from
		return nil, err
	}
	return w, nil
}

// unreadable returns why a directory cannot be copied, without its path: the error may reach a model.
func unreadable(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("%w: the directory that is to be copied into the sandbox: %v", backend.ErrInvalid, err)
}

func (w *workspace) add(e entry) error {
	isDir := e.kind == session.TypeDir
	switch {
	case e.unreadable != nil:
		return fmt.Errorf("%w: workspace: %v", backend.ErrInvalid, e.unreadable)
	case isDir && isPrivate(e.path):
		return fs.SkipDir
	case !utf8.ValidString(e.path) || !isDir && e.kind != session.TypeFile:
		w.stats.Skipped = append(w.stats.Skipped, e.path)
		if isDir {
			return fs.SkipDir
		}
		return nil
	case isDir:
		e.mode = e.mode&^0o022 | 0o700
	default:
		e.mode = e.mode&^0o022 | 0o600
		w.stats.Files++
		w.stats.Bytes += e.size
	}
	w.entries = append(w.entries, e)
	return nil
}

// isPrivate reports whether a directory is not part of a project's files: version control's at any depth, and what Workcell
// itself keeps in a workspace.
func isPrivate(name string) bool {
	return slices.Contains([]string{".git", ".hg", ".svn"}, path.Base(name)) || name == privateDir
}

func (w *workspace) copy(ctx context.Context, dst Destination, e entry) error {
	if e.kind == session.TypeDir {
		_, err := dst.MakeDir(ctx, e.path, e.mode)
		return err
	}
	src, err := w.root.Open(e.path)
	if err != nil {
		return fmt.Errorf("%w: %v", backend.ErrInvalid, err)
	}
	defer src.Close() // only read from
	// What was listed was bounded; what was appended since is not copied.
	_, err = dst.WriteFile(ctx, e.path, io.LimitReader(src, e.size), session.WriteFileOptions{Mode: e.mode, Overwrite: true})
	return err
}
