package server

import (
	"os"
	"path"
	"sync"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// spillDir is where output goes that does not fit an answer, below the work directory.
const spillDir = ".workcell/output"

// spiller makes spill files and keeps their number bounded.
type spiller struct {
	root  *root
	fs    gate
	quota *quota

	mu    sync.Mutex // guards names
	names []string   // oldest first
}

func newSpiller(r *root, g gate, q *quota) *spiller { return &spiller{root: r, fs: g, quota: q} }

// spill is the file of one stream. It is opened when it is first written to.
type spill struct {
	s     *spiller
	name  string
	begun bool // guarded by the recorder's mutex

	mu   sync.Mutex // guards the fields below
	f    *os.File
	size int64
	cut  bool
	shut bool
}

func (s *spiller) plan(id string, stream wire.StreamName) *spill {
	return &spill{s: s, name: path.Join(spillDir, id+"."+string(stream))}
}

// open makes the file anew. A command may have put anything in its place, which O_EXCL and the root refuse.
func (s *spiller) open(name string) (*os.File, error) {
	if err := s.root.MkdirAll(spillDir, 0o755); err != nil {
		return nil, err
	}
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, name)
	if len(s.names) > spillFiles {
		_ = s.root.Remove(s.names[0]) // a command may have removed it
		s.names = s.names[1:]
	}
	return f, nil
}

// write appends p as far as the file may grow. What fails shows in result.
func (sp *spill) write(p []byte) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if len(p) == 0 || sp.cut || sp.shut {
		return
	}
	release, err := sp.s.quota.claim(int64(len(p)), 0)
	if err == nil {
		err = sp.s.fs.do(func() error { return sp.append(p) })
		release()
	}
	if err != nil {
		sp.cut = true
	}
}

func (sp *spill) append(p []byte) error {
	if sp.f == nil {
		f, err := sp.s.open(sp.name)
		if err != nil {
			return err
		}
		sp.f = f
	}
	if room := spillMax - sp.size; int64(len(p)) > room {
		p, sp.cut = p[:room], true
	}
	n, err := sp.f.Write(p)
	sp.size += int64(n)
	return err
}

// result gives the file's absolute path, empty when there is none, and whether output is missing from it.
func (sp *spill) result() (string, bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.f == nil && sp.size == 0 {
		return "", false
	}
	return path.Join(sp.s.root.workdir, sp.name), sp.cut
}

func (sp *spill) close() {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.shut = true
	if sp.f != nil {
		_ = sp.f.Close() // every write was checked
		sp.f = nil
	}
}
