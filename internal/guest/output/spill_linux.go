package output

import (
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

// Limits of spill files.
const (
	spillMax   = 64 << 20 // maximum size of a spill file
	spillFiles = 32       // maximum number of spill files
)

// spillDir is the directory, below the workspace, for output too large for a response.
const spillDir = wire.PrivateDir + "/output"

// spillShare limits all spill files together to 1/spillShare of a limited workspace, because the rest belongs to the
// user.
const spillShare = 8

// spillLook is the maximum number of directory entries to examine for existing spill files.
const spillLook = 4096

// Spiller creates spill files and limits their number and total size. It removes the oldest files to make space.
type Spiller struct {
	root  *os.Root
	fs    disk.Gate
	quota *disk.Quota
	most  int64 // maximum total size of all files

	mu   sync.Mutex // guards the fields below, and spill.held
	find sync.Once  // finds files of earlier guest agents
	kept []*spill   // oldest first
	held int64      // total size of kept
}

// NewSpiller returns a Spiller for files below r, within the quota q. workspaceBytes is the size of the workspace; 0
// means no limit.
func NewSpiller(r *os.Root, g disk.Gate, q *disk.Quota, workspaceBytes int64) *Spiller {
	s := &Spiller{root: r, fs: g, quota: q, most: spillFiles * spillMax}
	if workspaceBytes > 0 {
		s.most = min(s.most, workspaceBytes/spillShare)
	}
	return s
}

// spill is the spill file of one stream. The first write opens it.
type spill struct {
	s     *Spiller
	name  string
	begun bool        // guarded by the recorder's mutex
	gone  atomic.Bool // removed to make space
	held  int64       // size counted by the spiller

	mu   sync.Mutex // guards the fields below
	f    *os.File
	size int64
	cut  bool
	shut bool
}

func (s *Spiller) plan(id string, stream wire.StreamName) *spill {
	return &spill{s: s, name: path.Join(spillDir, id+"."+string(stream))}
}

// open creates a new file. If a command created an entry at this path, O_EXCL and the root make open fail.
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

// findKept adds existing files to kept. A command may have created many files, so only some of them are examined. The
// caller must hold mu.
func (s *Spiller) findKept() {
	dir, err := s.root.OpenFile(spillDir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer dir.Close()
	entries, _ := dir.ReadDir(spillLook) // ignores errors
	var found []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && isSpill(e.Name()) {
			found = append(found, info)
		}
	}
	slices.SortStableFunc(found, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range found {
		s.kept = append(s.kept, &spill{s: s, name: path.Join(spillDir, info.Name()), held: info.Size()})
		s.held += info.Size()
	}
}

// isSpill reports whether a file name has the form of a spill file.
func isSpill(name string) bool {
	id, stream, _ := strings.Cut(name, ".")
	return wire.ValidExecID(id) && (stream == string(wire.Stdout) || stream == string(wire.Stderr))
}

// grant allows up to n more bytes for a file and removes older files to make space. It returns the allowed number.
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

// dropOldest removes the oldest file. If a command still writes to it, the space is freed afterwards. The caller must
// hold mu.
func (s *Spiller) dropOldest() {
	oldest := s.kept[0]
	s.kept = s.kept[1:]
	s.held -= oldest.held
	oldest.gone.Store(true)
	_ = s.root.Remove(oldest.name) // a command may have removed it
}

// write appends p up to the maximum size of the file. result reports failures.
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

// result returns the file's absolute path, or an empty string, and reports whether output is missing from the file.
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
