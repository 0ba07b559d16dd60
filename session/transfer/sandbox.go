package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// privateDir contains Workcell's own files in a workspace. See patch.IsPrivate.
const privateDir = ".workcell"

// scratchDir is the other directory for copies from and to a sandbox.
const scratchDir = "/tmp"

// workspacePath returns the user's path relative to the workspace. The workspace itself is ".". An absolute path below
// scratchDir is returned unchanged.
func workspacePath(workdir, p string) (string, error) {
	below, ok := path.Clean(p), true // an empty path becomes "."
	switch {
	case below == workdir:
		below = "."
	case below == scratchDir || strings.HasPrefix(below, scratchDir+"/"):
		return below, nil
	case path.IsAbs(below):
		below, ok = cutDir(below, workdir)
	}
	if !ok || below == ".." || strings.HasPrefix(below, "../") {
		return "", hint.New(hint.Usage, fmt.Errorf("%s is not below %s or %s", p, workdir, scratchDir),
			"for other paths, copy out with: workcell sandbox exec SANDBOX -- cat "+hint.Quote(p)+" > FILE, "+
				"and in with: workcell sandbox exec SANDBOX -- tee "+hint.Quote(p)+" < FILE")
	}
	return below, nil
}

// cutDir returns p relative to dir. Every path is below ".".
func cutDir(p, dir string) (below string, ok bool) {
	if dir == "." {
		return p, true
	}
	return strings.CutPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// statWorkspace describes the file at a path. If the path is a link within the workspace, it describes the target.
func statWorkspace(ctx context.Context, s *session.Session, at string) (sandbox.FileInfo, error) {
	info, err := s.StatFile(ctx, at)
	if err != nil || info.Type != sandbox.TypeSymlink {
		return info, err
	}
	if _, err := s.ListFiles(ctx, at, sandbox.ListFilesOptions{Limit: 1}); err == nil {
		return sandbox.FileInfo{Path: at, Type: sandbox.TypeDir, Mode: 0o755}, nil
	}
	return s.ReadFile(ctx, at, io.Discard, sandbox.ReadFileOptions{Limit: 1}) // describes the opened file
}

// For files smaller than smallFile, the read limit is the size plus smallGrowth. A guest allocates memory for the
// limit, and for many small files the allocation is most of the guest's work.
const (
	smallFile   = 48 << 10
	smallGrowth = 1 << 10
)

// errGrown reports growth of the file beyond the read limit.
var errGrown = errors.New("the file grew during the copy")

// sandboxSource is a file or directory of a workspace.
type sandboxSource struct {
	s    *session.Session
	arg  string // as the user wrote it
	raw  string // the path in arg
	at   string // relative to the workspace
	info sandbox.FileInfo
}

func newSandboxSource(ctx context.Context, s *session.Session, arg, raw string) (source, error) {
	at, err := workspacePath(s.Info().Workdir, raw)
	if err != nil {
		return nil, err
	}
	info, err := statWorkspace(ctx, s, at)
	if err != nil {
		return nil, copyError(arg, err)
	}
	return &sandboxSource{s, arg, raw, at, info}, nil
}

func (s *sandboxSource) place() place {
	_, contents := pathEnd(s.raw)
	p := place{name: s.arg, base: path.Base(s.at), contents: contents || s.raw == ""}
	if s.at == "." {
		p.base = path.Base(backend.Workdir) // fixed, because the sandbox must not choose it
	}
	return p
}

func (s *sandboxSource) self() entry  { return sandboxEntry("", s.info) }
func (s *sandboxSource) close() error { return nil }

func (s *sandboxSource) list(ctx context.Context) ([]entry, error) {
	found, err := s.s.ListFiles(ctx, s.at, sandbox.ListFilesOptions{Recursive: true, Limit: maxEntries})
	if err != nil {
		return nil, err
	}
	if found.Truncated {
		return nil, tooMany(found.Total)
	}
	list := make([]entry, 0, len(found.Entries))
	for _, info := range found.Entries {
		full := info.Path
		if len(info.RawPath) > 0 {
			full = string(info.RawPath)
		}
		if s.at == "." && (full == privateDir || strings.HasPrefix(full, privateDir+"/")) {
			continue
		}
		below, ok := cutDir(full, s.at)
		if !ok {
			return nil, fmt.Errorf("%w: an entry belongs to another directory", backend.ErrProtocol)
		}
		list = append(list, sandboxEntry(below, info))
	}
	return list, nil
}

func sandboxEntry(name string, info sandbox.FileInfo) entry {
	e := entry{path: name, kind: info.Type, mode: info.Mode.Perm()}
	if e.kind == sandbox.TypeFile {
		e.size = info.Size
	}
	return e
}

func (s *sandboxSource) open(ctx context.Context, e entry) (io.ReadCloser, error) {
	var opts sandbox.ReadFileOptions
	if e.path != "" && e.size >= 0 && e.size < smallFile { // only below a directory; retried if the limit is too small
		opts.Limit = e.size + smallGrowth
	}
	r, w := io.Pipe()
	go func() { // returns at the end of the file, or when the reader is closed
		info, err := s.s.ReadFile(ctx, path.Join(s.at, e.path), w, opts)
		if err == nil && opts.Limit > 0 && info.Size > opts.Limit {
			err = errGrown
		}
		w.CloseWithError(err)
	}()
	return r, nil
}

// sandboxTarget is a file or directory of a workspace.
type sandboxTarget struct {
	s   *session.Session
	as  place
	dir string // from workspacePath; names are relative to it
}

func newSandboxTarget(ctx context.Context, s *session.Session, arg, raw string) (target, error) {
	at, err := workspacePath(s.Info().Workdir, raw)
	if err != nil {
		return nil, err
	}
	t := &sandboxTarget{s: s, as: place{name: arg}, dir: at}
	t.as.dirOnly, _ = pathEnd(raw)
	info, err := statWorkspace(ctx, s, at)
	switch {
	case err == nil && info.Type == sandbox.TypeOther:
		return nil, hint.New(hint.Failed, fmt.Errorf("%s is neither a file nor a directory", arg), "")
	case err == nil:
		t.as.kind = info.Type
		return t, nil
	case !errors.Is(err, backend.ErrNotFound):
		return nil, copyError(arg, err)
	}
	above, err := statWorkspace(ctx, s, path.Dir(at))
	if errors.Is(err, backend.ErrNotFound) || err == nil && above.Type != sandbox.TypeDir {
		return nil, hint.New(hint.Failed, fmt.Errorf("%s: directory %s not found in the sandbox", arg, path.Dir(at)),
			"create it with: workcell sandbox exec "+s.ID()+" -- mkdir -p "+hint.Quote(path.Dir(at)))
	}
	if err != nil {
		return nil, copyError(arg, err)
	}
	return t, nil
}

func (t *sandboxTarget) place() place { return t.as }
func (t *sandboxTarget) close() error { return nil }

func (t *sandboxTarget) enter(ctx context.Context, name string, mode fs.FileMode) error {
	t.dir = path.Join(t.dir, name)
	if t.dir == "." || t.as.kind == sandbox.TypeDir && name == "" {
		return nil
	}
	return t.mkdir(ctx, "", mode)
}

// mkdir creates a directory with all permissions for the owner, to allow writes of files into it.
func (t *sandboxTarget) mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	_, err := t.s.MakeDir(ctx, path.Join(t.dir, name), mode|0o700)
	return err
}

func (t *sandboxTarget) write(ctx context.Context, name string, e entry, r io.Reader) error {
	mode := e.mode
	if mode == 0 { // zero would mean the default mode
		mode = 0o400
	}
	opts := sandbox.WriteFileOptions{Mode: mode, Overwrite: true, Size: e.size}
	_, err := t.s.WriteFile(ctx, path.Join(t.dir, name), r, opts)
	return err
}
