package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// Bounds of a workspace.
const (
	maxWorkspaceFiles = 10_000
	maxWorkspaceBytes = 256 << 20
)

// destination is where the files of a workspace go: a *session.Session.
type destination interface {
	WriteFile(ctx context.Context, path string, r io.Reader, opts session.WriteFileOptions) (session.FileInfo, error)
	MakeDir(ctx context.Context, path string, mode fs.FileMode) (session.FileInfo, error)
}

// workspace is a directory of the host that sandboxes begin with a copy of. What is copied is known before the first byte
// goes over: a directory that is too large is refused as a whole. Symbolic links are neither followed nor copied, so nothing
// outside the directory gets into the sandbox; nor are version control's own directories, sockets, devices and pipes.
type workspace struct {
	root    *os.Root
	entries []entry
	bytes   int64
	skipped []string // links and special files, by their path below the directory
}

// CheckWorkspace fails as [NewSnapshot] would, and returns the links and special files that are not copied,
// by their path below dir.
func CheckWorkspace(ctx context.Context, dir string) (skipped []string, err error) {
	w, err := openWorkspace(ctx, dir, maxWorkspaceFiles, maxWorkspaceBytes)
	if err != nil {
		return nil, err
	}
	return w.skipped, w.root.Close()
}

// openWorkspace lists the directory without opening a file, and refuses it when it passes a bound. The caller must close
// the root.
func openWorkspace(ctx context.Context, dir string, maxFiles int, maxBytes int64) (*workspace, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		var at *fs.PathError // the error may reach a model, which needs no path of the host
		if errors.As(err, &at) {
			err = at.Err
		}
		return nil, fmt.Errorf("%w: the directory that is to be copied into the sandbox: %v", backend.ErrInvalid, err)
	}
	w := &workspace{root: root}
	err = walk(ctx, root, func(e entry) error {
		if err := w.add(e); err != nil {
			return err
		}
		switch {
		case len(w.entries) > maxFiles:
			return fmt.Errorf("%w: the workspace has more than %d files and directories", backend.ErrTooLarge, maxFiles)
		case w.bytes > maxBytes:
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

func (w *workspace) add(e entry) error {
	isDir := e.kind == session.TypeDir
	switch {
	case e.unreadable != nil:
		return fmt.Errorf("%w: workspace: %v", backend.ErrInvalid, e.unreadable)
	case isDir && session.IsPrivateDir(e.path):
		return fs.SkipDir
	case !utf8.ValidString(e.path) || !isDir && e.kind != session.TypeFile:
		w.skipped = append(w.skipped, e.path)
		if isDir {
			return fs.SkipDir
		}
		return nil
	case isDir:
		e.mode = e.mode&^0o022 | 0o700
	default:
		e.mode = e.mode&^0o022 | 0o600
		w.bytes += e.size
	}
	w.entries = append(w.entries, e)
	return nil
}
