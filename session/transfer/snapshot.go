package transfer

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Snapshot is a copy of a host directory at the beginning of a run. It is taken for the first sandbox, and all
// sandboxes of the run get the same copy. Diff compares a sandbox with it. A Snapshot is safe for concurrent use.
type Snapshot struct {
	at   Place
	dir  string // path of at without links
	file string // the zip archive; empty until a temp file is created
	temp bool

	mu     sync.Mutex      // guards the fields below; held while the archive is written
	taken  bool            // the archive exists
	copies map[string]bool // ids of sandboxes with a copy; nil for an archive of an earlier process
}

// NewSnapshot returns a snapshot of a directory. file is the path of the archive; if empty, the snapshot uses a temp
// file. If file exists, it is the snapshot of an earlier process of the run. If the directory has more than 10,000
// entries or 256 MiB, the error wraps backend.ErrTooLarge. If at is not a directory, the error wraps
// backend.ErrInvalid.
func NewSnapshot(ctx context.Context, at Place, file string) (*Snapshot, error) {
	s := &Snapshot{at: at, file: file, temp: file == ""}
	if file != "" {
		if _, err := os.Stat(file); err == nil {
			dir, err := os.ReadFile(file + dirSuffix)
			if errors.Is(err, fs.ErrNotExist) { // taken on another host
				err = nil
			}
			s.taken, s.dir = true, string(dir)
			return s, err
		}
	}
	s.copies = map[string]bool{}
	w, err := openWorkspace(ctx, at)
	if err != nil {
		return s, err
	}
	s.dir = w.dir
	return s, w.root.Close()
}

// dirSuffix is the suffix of the file with the directory's path. A link may have replaced the directory since.
const dirSuffix = "-dir"

// Dir returns the absolute path of the directory without links. If the snapshot was taken on another host, Dir returns
// "".
func (s *Snapshot) Dir() string { return s.dir }

// Into returns req with a Prepare function to call the existing one and then copy the snapshot to the workspace. It
// overwrites existing files and keeps other files.
func (s *Snapshot) Into(req session.Request) session.Request {
	before := req.Prepare
	req.Prepare = func(ctx context.Context, box *session.Session) error {
		if before != nil {
			if err := before(ctx, box); err != nil {
				return err
			}
		}
		if err := s.copyTo(ctx, box); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.copies != nil {
			s.copies[box.ID()] = true
		}
		return nil
	}
	return req
}

func (s *Snapshot) copyTo(ctx context.Context, dst destination) error {
	if err := s.Take(ctx); err != nil {
		return err
	}
	archive, err := s.open()
	if err != nil {
		return err
	}
	defer archive.Close() // only read from
	entries := make([]entry, len(archive.File))
	for i, f := range archive.File {
		entries[i] = entryOf(f)
	}
	return inWaves(ctx, entries, func(ctx context.Context, i int) error {
		if err := copyEntry(ctx, dst, entries[i], archive.File[i]); err != nil {
			return fmt.Errorf("workspace: %s: %w", entries[i].path, err)
		}
		return nil
	})
}

// open opens the archive, which may be from another host.
func (s *Snapshot) open() (*zip.ReadCloser, error) {
	archive, err := zip.OpenReader(s.file)
	if err != nil {
		return nil, err
	}
	left := uint64(maxWorkspaceBytes)
	for _, f := range archive.File {
		if f.UncompressedSize64 > left || len(archive.File) > maxWorkspaceFiles {
			err := fmt.Errorf("%w: the copy of the workspace exceeds %d files or %d bytes",
				backend.ErrTooLarge, maxWorkspaceFiles, maxWorkspaceBytes)
			return nil, errors.Join(err, archive.Close())
		}
		left -= f.UncompressedSize64
	}
	return archive, nil
}

func entryOf(f *zip.File) entry {
	return hostEntry(strings.TrimSuffix(f.Name, "/"), f.FileInfo())
}

func copyEntry(ctx context.Context, dst destination, e entry, f *zip.File) error {
	if e.kind == sandbox.TypeDir {
		_, err := dst.MakeDir(ctx, e.path, e.mode)
		return err
	}
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close() // only read from
	_, err = dst.WriteFile(ctx, e.path, r, sandbox.WriteFileOptions{Mode: e.mode, Overwrite: true})
	return err
}

// Take takes the snapshot now instead of at the first copy. If the snapshot exists, Take does nothing.
func (s *Snapshot) Take(ctx context.Context) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken {
		return nil
	}
	w, err := openWorkspace(ctx, s.at)
	if err != nil {
		return err
	}
	defer w.root.Close() // only read from
	if w.dir != s.dir {
		return fmt.Errorf("%w: the directory to copy into the sandbox was replaced", backend.ErrInvalid)
	}
	dir, name := "", "workcell-workspace" // for a temp file
	if !s.temp {
		dir, name = filepath.Split(s.file)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(dir, name+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot snapshot the workspace: %w", cause(err)), os.Remove(f.Name()))
		}
	}()
	if s.temp {
		err = errors.Join(w.archive(ctx, f), f.Close())
		s.file = f.Name()
	} else { // a later process of the run trusts the files with these names
		err = errors.Join(w.archive(ctx, f), f.Sync(), f.Close(), runfiles.WriteWhole(s.file+dirSuffix, w.writeDir))
		if err == nil {
			err = os.Rename(f.Name(), s.file)
		}
	}
	if err != nil {
		return err
	}
	s.taken = true
	return nil
}

func (w *workspace) writeDir(f io.Writer) error {
	_, err := io.WriteString(f, w.dir)
	return err
}

// archive writes the workspace as an uncompressed zip archive. It is read at once and deleted with the run.
func (w *workspace) archive(ctx context.Context, f io.Writer) error {
	z := zip.NewWriter(f)
	for _, e := range w.entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.write(z, e); err != nil {
			return fmt.Errorf("%s: %w", e.path, err)
		}
	}
	return z.Close()
}

func (w *workspace) write(z *zip.Writer, e entry) error {
	h := &zip.FileHeader{Name: e.path, Method: zip.Store}
	h.SetMode(e.mode)
	if e.kind == sandbox.TypeDir {
		h.Name += "/"
		h.SetMode(e.mode | fs.ModeDir)
		_, err := z.CreateHeader(h)
		return err
	}
	src, err := w.root.Open(filepath.FromSlash(e.path))
	if err != nil {
		return fmt.Errorf("%w: %v", backend.ErrInvalid, err)
	}
	defer src.Close() // only read from
	dst, err := z.CreateHeader(h)
	if err != nil {
		return err
	}
	// The list has a size limit, so data appended since then is not copied.
	_, err = io.Copy(dst, io.LimitReader(src, e.size))
	return err
}

// untouched returns an empty patch if the directory was copied to no sandbox. If it was copied, or without a snapshot,
// untouched returns nil.
func (s *Snapshot) untouched() *patch.Patch {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken {
		return nil
	}
	return &patch.Patch{}
}

// Diff returns a sandbox's changes to the copy. If the sandbox did not begin with a copy, Diff returns nil.
func (s *Snapshot) Diff(ctx context.Context, box *session.Session) (*patch.Patch, error) {
	s.mu.Lock()
	began := s.taken && (s.copies == nil || s.copies[box.ID()])
	s.mu.Unlock()
	if !began {
		return nil, nil
	}
	base, err := s.tree()
	if err != nil {
		return nil, err
	}
	return box.Diff(ctx, base)
}

// tree returns the files of the snapshot.
func (s *Snapshot) tree() (patch.Tree, error) {
	archive, err := s.open()
	if err != nil {
		return nil, err
	}
	defer archive.Close() // only read from
	tree := patch.Tree{}
	for _, f := range archive.File {
		e := entryOf(f)
		if e.kind == sandbox.TypeDir {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
		tree[e.path] = patch.Entry{Mode: e.mode, Content: content}
	}
	return tree, nil
}

// Remove deletes the snapshot. It also deletes the parent directory of the file if the directory is empty. Do not use
// the snapshot afterwards.
func (s *Snapshot) Remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.taken {
		return nil
	}
	s.taken = false
	if err := os.Remove(s.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !s.temp {
		_ = os.Remove(s.file + dirSuffix)   // may not exist
		_ = os.Remove(filepath.Dir(s.file)) // fails if the directory is not empty
	}
	return nil
}
