package output

import (
	"cmp"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/workcell-dev/workcell/internal/guest/disk"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Bounds of spill files.
const (
	spillMax   = 64 << 20 // bytes of one spill file
	spillFiles = 32       // spill files that are kept
)

// spillDir is where output goes that does not fit an answer, below the work directory.
const spillDir = ".workcell/output"

// spillShare is the part of a limited workspace that all spill files together may have: the rest is the user's.
const spillShare = 8

// spillLook bounds how many files of earlier lives are looked for.
const spillLook = 4096

// Spiller makes spill files and keeps them bounded: how many there are, and what they hold together. The oldest make
// room.
type Spiller struct {
	root  *os.Root
	fs    disk.Gate
	quota *disk.Quota
	most  int64 // bytes of all files together

	mu   sync.Mutex // guards the fields below, and spill.held
	find sync.Once  // looks for what an earlier life of the sandbox left
	kept []*spill   // oldest first
	held int64      // by kept
}

// NewSpiller makes files below r within its quota q; workspaceBytes is the size of the workspace, 0 for no limit.
func NewSpiller(r *os.Root, g disk.Gate, q *disk.Quota, workspaceBytes int64) *Spiller {
	s := &Spiller{root: r, fs: g, quota: q, most: spillFiles * spillMax}
	if workspaceBytes > 0 {
		s.most = min(s.most, workspaceBytes/spillShare)
	}
	return s
}

// spill is the file of one stream. It is opened when it is first written to.
type spill struct {
	s     *Spiller
	name  string
	begun bool        // guarded by the recorder's mutex
	gone  atomic.Bool // removed to make room
	held  int64       // what its spiller counts for it

	mu   sync.Mutex // guards the fields below
	f    *os.File
	size int64
	cut  bool
	shut bool
}

func (s *Spiller) plan(id string, stream wire.StreamName) *spill {
	return &spill{s: s, name: path.Join(spillDir, id+"."+string(stream))}
}

// open makes a new file. A command may have put anything in its place, which O_EXCL and the root refuse.
func (s *Spiller) open(sp *spill) (*os.File, error) {
	if err := s.root.MkdirAll(spillDir, 0o755); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.find.Do(s.findKept)
	f, err := s.root.OpenFile(sp.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	s.kept = append(s.kept, sp)
	for len(s.kept) > spillFiles {
		s.dropOldest()
	}
	return f, nil
}

// findKept counts the files that are there already, of the many that a command may have put there some. mu is held.
func (s *Spiller) findKept() {
	dir, err := s.root.OpenFile(spillDir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer dir.Close()
	entries, _ := dir.ReadDir(spillLook) // as far as it can be read
	var found []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && isSpill(e.Name()) {
			found = append(found, info)
		}
	}
	slices.SortStableFunc(found, func(a, b fs.FileInfo) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) })
	for _, info := range found {
		s.kept = append(s.kept, &spill{s: s, name: path.Join(spillDir, info.Name()), held: info.Size()})
		s.held += info.Size()
	}
}

// isSpill reports whether a file is named as spill names it.
func isSpill(name string) bool {
	id, stream, _ := strings.Cut(name, ".")
	return wire.ValidExecID(id) && (stream == string(wire.Stdout) || stream == string(wire.Stderr))
}

// grant counts n more bytes for a file, as far as it may have them, and lets older files go for it.
func (s *Spiller) grant(sp *spill, n int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.held+n > s.most && len(s.kept) > 0 && s.kept[0] != sp {
		s.dropOldest()
	}
	if sp.gone.Load() {
		return 0
	}
	n = max(0, min(n, s.most-s.held))
	sp.held += n
	s.held += n
	return n
}

// dropOldest removes the oldest file. Where it is still written to, its space is free when that ends. mu is held.
func (s *Spiller) dropOldest() {
	oldest := s.kept[0]
	s.kept = s.kept[1:]
	s.held -= oldest.held
	oldest.gone.Store(true)
	_ = s.root.Remove(oldest.name) // a command may have removed it
}

// write appends p as far as the file may grow. What fails shows in result.
func (sp *spill) write(p []byte) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if len(p) == 0 || sp.cut || sp.shut {
		return
	}
	release, err := sp.s.quota.Reserve(int64(len(p)), 0)
	if err == nil {
		err = sp.s.fs.Do(func() error { return sp.append(p) })
		release()
	}
	if err != nil {
		sp.cut = true
	}
	if sp.cut && sp.f != nil {
		_ = sp.f.Close() // every write was checked
		sp.f = nil
	}
}

func (sp *spill) append(p []byte) error {
	if sp.f == nil {
		f, err := sp.s.open(sp)
		if err != nil {
			return err
		}
		sp.f = f
	}
	if room := sp.s.grant(sp, min(int64(len(p)), spillMax-sp.size)); int64(len(p)) > room {
		p, sp.cut = p[:room], true
	}
	n, err := sp.f.Write(p)
	sp.size += int64(n)
	return err
}

// result returns the file's absolute path, empty when there is none, and whether output is missing from it.
func (sp *spill) result() (string, bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.size == 0 || sp.gone.Load() {
		return "", false
	}
	return path.Join(sp.s.root.Name(), sp.name), sp.cut
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
