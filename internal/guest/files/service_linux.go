package files

import (
	"errors"
	"io"
	"os"
	"path"
	"sync"

	"github.com/workcell-dev/workcell/internal/guest/disk"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Request is a file request of a host.
type Request interface {
	io.ReadWriter // frames after the request and after the response
	Answer(msg any) error
}

// Service handles requests for files in the workspace and in a second root. It is safe for concurrent use after it is
// complete.
type Service struct {
	root    *root
	scratch *root // may be nil
	fs      disk.Gate
	// names contains locks, by the checksum of a file's name. A lock is held while a file gets the final name, to prevent
	// two concurrent writes of a file from treating each other as changes by commands.
	names [64]sync.Mutex
}

// Open opens the workspace.
func Open(workdir string, fs disk.Gate) (*Service, error) {
	r, err := openRoot(workdir)
	if err != nil {
		return nil, err
	}
	return &Service{root: r, fs: fs}, nil
}

// Root returns the workspace.
func (s *Service) Root() *os.Root { return s.root.Root }

// Limit sets the limit of the workspace.
func (s *Service) Limit(q *disk.Quota) { s.root.quota = q }

// AddScratch opens the second root, whose files are in memory. fits returns an error if memory cannot hold this many
// bytes.
func (s *Service) AddScratch(dir string, fits func(int64) error) error {
	r, err := openRoot(dir)
	if err != nil {
		return err
	}
	r.fits, s.scratch = fits, r
	return nil
}

// Close closes the roots.
func (s *Service) Close() error {
	if s.scratch != nil {
		return errors.Join(s.root.Close(), s.scratch.Close())
	}
	return s.root.Close()
}

// locate returns the root of a request's path, and the path below this root. Relative paths are in the workspace.
func (s *Service) locate(p string) (*root, string, error) {
	rel, err := s.root.rel(p)
	if err != nil && s.scratch != nil && path.IsAbs(p) {
		if rel, scratchErr := s.scratch.rel(p); scratchErr == nil {
			return s.scratch, rel, nil
		}
		err = wire.Errorf(wire.CodePermission, "%s: outside %s and %s", show(p), s.root.dir, s.scratch.dir)
	}
	return s.root, rel, err
}
