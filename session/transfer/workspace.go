package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
)

// Limits of a workspace.
const (
	maxWorkspaceFiles = 10_000
	maxWorkspaceBytes = 256 << 20
)

// destination is the target of a workspace's files, a *session.Session.
type destination interface {
	WriteFile(ctx context.Context, path string, r io.Reader, opts sandbox.WriteFileOptions) (sandbox.FileInfo, error)
	MakeDir(ctx context.Context, path string, mode fs.FileMode) (sandbox.FileInfo, error)
}

// workspace is a host directory to copy to new sandboxes. It is listed completely before the first byte is copied, to
// refuse a directory above the limits as a whole. Symbolic links are neither followed nor copied, so no file outside
// the directory is copied. Version control directories, sockets, devices, and pipes are not copied either.
type workspace struct {
	root    *os.Root
	dir     string // path of root without links
	entries []entry
	bytes   int64
	skipped []string // links and special files, relative to the directory
}

// Place is a directory of the host. The zero value means no directory.
type Place struct {
	Dir string
	// If set, Within is the directory that must contain Dir after all links are resolved. It is set if an untrusted
	// file specifies Dir.
	Within string
}

// open opens the directory and returns the path without links. The error contains no host path, because a model may see
// it.
func (p Place) open() (root *os.Root, dir string, err error) {
	if p.Dir == "" {
		return nil, "", fs.ErrNotExist
	}
	if dir, err = filepath.Abs(p.Dir); err == nil {
		root, err = p.openAt(dir)
	}
	if err == nil {
		dir, err = exactPath(root, dir)
	}
	var at *fs.PathError
	switch {
	case err == nil:
		return root, dir, nil
	case p.Within != "" && strings.Contains(err.Error(), "escapes from parent"):
		err = errors.New("it leads outside the directory of the file that specifies it")
	case errors.As(err, &at):
		err = at.Err
	}
	return nil, dir, fmt.Errorf("%w: the directory to copy into the sandbox: %v", backend.ErrInvalid, err)
}

// exactPath returns the path of the opened directory without links.
func exactPath(root *os.Root, dir string) (string, error) {
	exact, err := filepath.EvalSymlinks(dir)
	opened, openedErr := root.Stat(".")
	now, nowErr := os.Lstat(exact)
	if err = errors.Join(err, openedErr, nowErr); err == nil && !os.SameFile(opened, now) {
		err = errors.New("the directory was replaced while it was opened")
	}
	if err != nil {
		err = errors.Join(err, root.Close())
	}
	return exact, err
}

func (p Place) openAt(dir string) (*os.Root, error) {
	if p.Within == "" {
		return os.OpenRoot(dir)
	}
	within, err := filepath.Abs(p.Within)
	if err != nil {
		return nil, err
	}
	below, err := filepath.Rel(within, dir)
	if err != nil {
		return nil, err
	}
	parent, err := os.OpenRoot(within)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return parent.OpenRoot(below)
}

// CheckWorkspace returns the same errors as [NewSnapshot]. It also returns the links and special files that are not
// copied, relative to the directory.
func CheckWorkspace(ctx context.Context, dir Place) (skipped []string, err error) {
	w, err := openWorkspace(ctx, dir)
	if err != nil {
		return nil, err
	}
	return w.skipped, w.root.Close()
}

// openWorkspace lists the directory without opening a file. If the directory exceeds a limit, openWorkspace returns an
// error. The caller must close the root.
func openWorkspace(ctx context.Context, at Place) (*workspace, error) {
	root, dir, err := at.open()
	if err != nil {
		return nil, err
	}
	w := &workspace{root: root, dir: dir}
	err = walk(ctx, root, func(e entry) error {
		if err := w.add(e); err != nil {
			return err
		}
		switch {
		case len(w.entries) > maxWorkspaceFiles:
			return fmt.Errorf("%w: the workspace has more than %d files and directories",
				backend.ErrTooLarge, maxWorkspaceFiles)
		case w.bytes > maxWorkspaceBytes:
			return fmt.Errorf("%w: the workspace has more than %d bytes", backend.ErrTooLarge, maxWorkspaceBytes)
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
	isDir, skip := e.kind == sandbox.TypeDir, error(nil)
	if isDir {
		skip = fs.SkipDir
	}
	switch {
	case e.unreadable != nil:
		return fmt.Errorf("%w: workspace: %v", backend.ErrInvalid, e.unreadable)
	case patch.IsPrivate(e.path):
		return skip
	case !utf8.ValidString(e.path) || !isDir && e.kind != sandbox.TypeFile:
		w.skipped = append(w.skipped, e.path)
		return skip
	case isDir:
		e.mode = e.mode&^0o022 | 0o700
	default:
		e.mode = e.mode&^0o022 | 0o600
		w.bytes += e.size
	}
	w.entries = append(w.entries, e)
	return nil
}
