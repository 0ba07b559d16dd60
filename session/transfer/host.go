package transfer

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/sandbox"
)

// openSource returns a source for a host file, a host directory, or standard input.
func openSource(stdin io.Reader, arg string) (source, error) {
	if arg == "-" {
		return &inputSource{stdin}, nil
	}
	st, err := os.Stat(arg)
	if err != nil {
		return nil, copyError(arg, err)
	}
	src := &hostSource{arg: arg, info: st}
	if st.IsDir() {
		if src.root, err = os.OpenRoot(arg); err != nil {
			return nil, copyError(arg, err)
		}
	}
	return src, nil
}

// inputSource is standard input.
type inputSource struct{ r io.Reader }

func (*inputSource) place() place                          { return place{name: "standard input"} }
func (*inputSource) list(context.Context) ([]entry, error) { return nil, nil }
func (*inputSource) close() error                          { return nil }

func (*inputSource) self() entry {
	return entry{kind: sandbox.TypeFile, mode: 0o644, size: -1}
}

func (s *inputSource) open(context.Context, entry) (io.ReadCloser, error) {
	return io.NopCloser(s.r), nil
}

// hostSource is a file or directory of the host.
type hostSource struct {
	arg  string
	info fs.FileInfo
	root *os.Root // only for a directory
}

func (s *hostSource) place() place {
	abs, err := filepath.Abs(s.arg)
	if err != nil {
		abs = filepath.Clean(s.arg)
	}
	p := place{name: s.arg}
	if base := filepath.Base(abs); filepath.IsLocal(base) { // the root of a file system has no name
		p.base = base
	}
	_, p.contents = pathEnd(s.arg)
	return p
}

func (s *hostSource) self() entry { return hostEntry("", s.info) }

func (s *hostSource) list(ctx context.Context) ([]entry, error) {
	var list []entry
	err := walk(ctx, s.root, func(e entry) error {
		switch {
		case e.path == ".":
			return e.unreadable
		case len(list) > 0 && list[len(list)-1].path == e.path:
			list[len(list)-1].unreadable = e.unreadable
			return nil
		case len(list) == maxEntries:
			return tooMany(maxEntries + 1)
		}
		list = append(list, e)
		return nil
	})
	return list, err
}

// walk calls visit for everything below a directory, parents first, without following links. If a directory cannot be
// read, walk visits it again with the error. It visits "." only in that case.
func walk(ctx context.Context, root *os.Root, visit func(entry) error) error {
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return visit(entry{path: name, kind: sandbox.TypeDir, unreadable: err})
		case name == ".":
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return visit(entry{path: name, unreadable: err})
		}
		return visit(hostEntry(name, info))
	})
}

// tooMany returns the error for a directory with too many entries.
func tooMany(n int64) error {
	err := fmt.Errorf("it contains %d or more files and directories, the limit of one copy is %d", n, maxEntries)
	return hint.New(hint.Failed, err, "copy its subdirectories separately")
}

func (s *hostSource) open(_ context.Context, e entry) (io.ReadCloser, error) {
	if e.path == "" {
		return os.Open(s.arg)
	}
	return s.root.Open(filepath.FromSlash(e.path))
}

func (s *hostSource) close() error {
	if s.root == nil {
		return nil
	}
	return s.root.Close()
}

func hostEntry(name string, info fs.FileInfo) entry {
	e := entry{path: name, kind: sandbox.TypeOther, mode: info.Mode().Perm(), size: info.Size()}
	switch {
	case info.Mode().IsRegular():
		e.kind = sandbox.TypeFile
	case info.IsDir():
		e.kind, e.size = sandbox.TypeDir, 0
	case info.Mode()&fs.ModeSymlink != 0:
		e.kind, e.size = sandbox.TypeSymlink, 0
	}
	return e
}

// openTarget returns a destination for a host path or standard output.
func openTarget(stdout io.Writer, arg string) (target, error) {
	if arg == "-" {
		return &outputTarget{stdout}, nil
	}
	t := &hostTarget{at: place{name: arg}}
	t.at.dirOnly, _ = pathEnd(arg)
	dir := arg
	st, err := os.Stat(arg)
	switch {
	case err == nil && st.IsDir():
		t.at.kind = sandbox.TypeDir
	case err == nil && !st.Mode().IsRegular():
		return nil, hint.New(hint.Failed, fmt.Errorf("%s is neither a file nor a directory", arg), "use - for stdout")
	case err == nil:
		t.at.kind = sandbox.TypeFile
		resolved, err := filepath.EvalSymlinks(arg) // replace the file, not a link to it
		if err != nil {
			return nil, copyError(arg, err)
		}
		dir, t.base = filepath.Split(resolved)
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(arg); err == nil {
			return nil, hint.New(hint.Failed, fmt.Errorf("%s is a broken link", arg), "")
		}
		dir, t.base = filepath.Split(filepath.Clean(arg))
	default:
		return nil, copyError(arg, err)
	}
	dir = cmp.Or(dir, ".")
	if t.root, err = os.OpenRoot(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, hint.New(hint.Failed, fmt.Errorf("%s: directory %s not found", arg, dir), "create the directory first")
	}
	if err != nil {
		return nil, copyError(arg, err)
	}
	return t, nil
}

// outputTarget is standard output.
type outputTarget struct{ w io.Writer }

func (*outputTarget) close() error                                     { return nil }
func (*outputTarget) enter(context.Context, string, fs.FileMode) error { return errors.ErrUnsupported }
func (*outputTarget) mkdir(context.Context, string, fs.FileMode) error { return errors.ErrUnsupported }

func (*outputTarget) place() place {
	return place{name: "standard output", kind: sandbox.TypeFile}
}

func (t *outputTarget) write(_ context.Context, _ string, _ entry, r io.Reader) error {
	_, err := io.Copy(t.w, r)
	return err
}

// hostTarget is a file or directory of the host. All names are resolved below root, and no link can lead outside root,
// because a sandbox may choose the names.
type hostTarget struct {
	at   place
	base string // name of the destination in root if root is the parent directory
	root *os.Root

	mu   sync.Mutex // guards made
	made []madeDir
}

// madeDir is a created directory. The mode is set at the end, when the directory is complete.
type madeDir struct {
	name string
	mode fs.FileMode
}

func (t *hostTarget) place() place { return t.at }

func (t *hostTarget) enter(ctx context.Context, name string, mode fs.FileMode) error {
	name = filepath.Join(t.base, filepath.FromSlash(name))
	if name == "" {
		return nil
	}
	if err := t.mkdir(ctx, name, mode); err != nil {
		return err
	}
	below, err := t.root.OpenRoot(name)
	if err != nil {
		return err
	}
	if len(t.made) > 0 {
		t.made[0].name = "."
	}
	above := t.root
	t.root, t.base = below, ""
	return above.Close()
}

func (t *hostTarget) mkdir(_ context.Context, name string, mode fs.FileMode) error {
	name = filepath.FromSlash(name)
	err := t.root.Mkdir(name, mode|0o700)
	if err == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.made = append(t.made, madeDir{name, mode})
		return nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	st, there := t.root.Stat(name)
	if there != nil {
		return there // a broken link, or a link to the outside
	}
	if !st.IsDir() {
		return err
	}
	return nil
}

// write writes a temp file in the destination's directory and renames it when it is complete.
func (t *hostTarget) write(ctx context.Context, name string, e entry, r io.Reader) (err error) {
	name = filepath.Join(t.base, filepath.FromSlash(name))
	st, err := t.root.Lstat(name)
	if err == nil && !st.Mode().IsRegular() && st.Mode()&fs.ModeSymlink == 0 {
		return errors.New("the target exists and is not a file")
	}
	temp := filepath.Join(filepath.Dir(name), ".workcell-"+rand.Text()+".tmp")
	f, err := t.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = t.root.Remove(temp) // the first error is the important one
		}
	}()
	_, err = io.Copy(f, r)
	if err == nil {
		err = ctx.Err()
	}
	if err = errors.Join(err, f.Chmod(e.mode), f.Close()); err != nil {
		return err
	}
	return t.root.Rename(temp, name)
}

// close sets the modes of the created directories, inner directories first, because an outer mode may prevent access.
func (t *hostTarget) close() error {
	var errs []error
	for i := len(t.made) - 1; i >= 0; i-- {
		errs = append(errs, t.root.Chmod(t.made[i].name, t.made[i].mode))
	}
	return errors.Join(append(errs, t.root.Close())...)
}
