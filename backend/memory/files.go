package memory

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// files stores the files of a workspace. The paths are clean and relative. The workspace itself is ".".
type files struct {
	mu    sync.Mutex // guards all fields below
	nodes map[string]*node
	limit int64 // maximum total size of all contents
	used  int64
}

// node is a file or a directory. It is immutable; changes replace it.
type node struct {
	dir  bool
	data []byte
	mode uint32
	mod  time.Time
}

func newFiles() *files {
	return &files{nodes: map[string]*node{".": {dir: true, mode: 0o755, mod: time.Now()}}}
}

// relative returns the path relative to the workspace.
func relative(p string) (string, error) {
	if strings.ContainsRune(p, 0) {
		return "", wire.Errorf(wire.CodeInvalid, "%q: the path must not contain a zero byte", p)
	}
	if path.IsAbs(p) {
		rel, ok := strings.CutPrefix(path.Clean(p)+"/", backend.Workdir+"/")
		if !ok {
			return "", wire.Errorf(wire.CodePermission, "%q: outside %s", p, backend.Workdir)
		}
		p = "./" + rel
	}
	p = path.Clean(p)
	if p == ".." || strings.HasPrefix(p, "../") {
		return "", wire.Errorf(wire.CodePermission, "%q: outside %s", p, backend.Workdir)
	}
	return p, nil
}

func (n *node) info(p string) wire.FileInfo {
	kind := wire.TypeFile
	if n.dir {
		kind = wire.TypeDir
	}
	return wire.FileInfo{Path: p, Type: kind, Size: int64(len(n.data)), Mode: n.mode, ModTimeUnix: n.mod.Unix()}
}

// find returns a node with the relative path. The caller must hold the mutex, for find and for all methods below except
// file and put.
func (f *files) find(name string) (string, *node, error) {
	p, err := relative(name)
	if err != nil {
		return "", nil, err
	}
	if n := f.nodes[p]; n != nil {
		return p, n, nil
	}
	return "", nil, wire.Errorf(wire.CodeNotFound, "%s: no such file or directory", p)
}

// makeDirs creates a directory and the parents.
func (f *files) makeDirs(p string, mode uint32) error {
	if n := f.nodes[p]; n != nil {
		if n.dir {
			return nil
		}
		return wire.Errorf(wire.CodeExists, "%s: is a file", p)
	}
	if err := f.makeDirs(path.Dir(p), 0o755); err != nil {
		return err
	}
	f.nodes[p] = &node{dir: true, mode: mode, mod: time.Now()}
	return nil
}

// file returns the node of a file. The node is immutable.
func (f *files) file(name string) (*node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.look(name)
}

// look is like file. The caller must hold the mutex.
func (f *files) look(name string) (*node, error) {
	p, n, err := f.find(name)
	if err != nil {
		return nil, err
	}
	if n.dir {
		return nil, wire.Errorf(wire.CodeInvalid, "%s: is a directory", p)
	}
	return n, nil
}

// put writes a whole file. It takes ownership of data.
func (f *files) put(req *wire.FilePutRequest, data []byte) (wire.FileInfo, error) {
	var none wire.FileInfo
	p, err := relative(req.Path)
	if err != nil {
		return none, err
	}
	if req.Mode > 0o777 {
		return none, wire.Errorf(wire.CodeInvalid, "mode %#o must contain only permission bits", req.Mode)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.nodes[p]
	var size int64
	mode := cmp.Or(req.Mode, 0o644)
	switch {
	case len(req.Was) > 0 && (old == nil || old.dir || !holds(old.data, req.Was)):
		return none, wire.Errorf(wire.CodeChanged, "%s: the file was changed by another process", p)
	case old != nil && old.dir:
		return none, wire.Errorf(wire.CodeInvalid, "%s: is a directory", p)
	case old != nil && !req.Overwrite && len(req.Was) == 0:
		return none, wire.Errorf(wire.CodeExists, "%s: file exists", p)
	case old != nil:
		size, mode = int64(len(old.data)), cmp.Or(req.Mode, old.mode)
	}
	used := f.used - size + int64(len(data))
	if f.limit > 0 && used > f.limit {
		return none, wire.Errorf(wire.CodeQuota, "%s: the workspace needs %d bytes, the limit is %d", p, used, f.limit)
	}
	if err := f.makeDirs(path.Dir(p), 0o755); err != nil {
		return none, err
	}
	n := &node{data: data, mode: mode, mod: time.Now()}
	f.nodes[p], f.used = n, used
	return n.info(p), nil
}

func holds(data, sum []byte) bool {
	is := sha256.Sum256(data)
	return bytes.Equal(is[:], sum)
}

func (f *files) stat(req *wire.PathRequest) (any, error) {
	p, n, err := f.find(req.Path)
	if err != nil {
		return nil, err
	}
	return n.info(p), nil
}

func (f *files) mkdir(req *wire.PathRequest) (any, error) {
	p, err := relative(req.Path)
	if err != nil {
		return nil, err
	}
	if err := f.makeDirs(p, cmp.Or(req.Mode, 0o755)); err != nil {
		return nil, err
	}
	return f.nodes[p].info(p), nil
}

// below returns the paths below a directory, sorted.
func (f *files) below(dir string) []string {
	var all []string
	for p := range f.nodes {
		if p != "." && (dir == "." || strings.HasPrefix(p, dir+"/")) {
			all = append(all, p)
		}
	}
	slices.Sort(all)
	return all
}

func (f *files) remove(req *wire.PathRequest) (any, error) {
	p, n, err := f.find(req.Path)
	switch {
	case err != nil:
		return nil, err
	case p == ".":
		return nil, wire.Errorf(wire.CodeInvalid, "%s cannot be removed", backend.Workdir)
	case n.dir && !req.Recursive:
		return nil, wire.Errorf(wire.CodeInvalid, "%s: is a directory; set recursive to remove it", p)
	}
	all := append(f.below(p), p)
	for _, each := range all {
		f.used -= int64(len(f.nodes[each].data))
		delete(f.nodes, each)
	}
	return wire.RemoveResult{Deleted: int64(len(all))}, nil
}

func (f *files) rename(req *wire.RenameRequest) (any, error) {
	from, err := relative(req.From)
	if err != nil {
		return nil, err
	}
	to, err := relative(req.To)
	if err != nil {
		return nil, err
	}
	_, n, err := f.find(from)
	if err != nil {
		return nil, err
	}
	_, parent, err := f.find(path.Dir(to))
	if err != nil {
		return nil, err
	}
	old := f.nodes[to]
	switch {
	case from == "." || to == "." || strings.HasPrefix(to, from+"/"):
		return nil, wire.Errorf(wire.CodeInvalid, "%s cannot be moved to %s", from, to)
	case !parent.dir:
		return nil, wire.Errorf(wire.CodeInvalid, "%s: not a directory", path.Dir(to))
	case old != nil && !req.Overwrite:
		return nil, wire.Errorf(wire.CodeExists, "%s: file exists", to)
	case from == to:
		return wire.Empty{}, nil
	case old != nil && (old.dir != n.dir || len(f.below(to)) > 0):
		return nil, wire.Errorf(wire.CodeInvalid, "%s: already exists", to)
	case old != nil:
		f.used -= int64(len(old.data))
	}
	for _, p := range f.below(from) {
		f.nodes[to+strings.TrimPrefix(p, from)] = f.nodes[p]
		delete(f.nodes, p)
	}
	delete(f.nodes, from)
	f.nodes[to] = n
	return wire.Empty{}, nil
}

func (f *files) list(req *wire.ListRequest) (any, error) {
	dir, n, err := f.find(req.Path)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, wire.Errorf(wire.CodeInvalid, "%s: not a directory", dir)
	}
	limit := min(cmp.Or(max(req.Limit, 0), wire.DefaultListEntries), wire.MaxListEntries)
	res := wire.ListResult{}
	bytes := 0
	for _, p := range f.below(dir) {
		private := dir == "." && (p == wire.PrivateDir || strings.HasPrefix(p, wire.PrivateDir+"/"))
		if private || !req.Recursive && path.Dir(p) != dir {
			continue
		}
		res.Total++
		bytes += len(p)
		if len(res.Entries) >= limit || bytes > wire.MaxListBytes {
			res.Truncated = true
			continue
		}
		res.Entries = append(res.Entries, f.nodes[p].info(p))
	}
	return res, nil
}

func (f *files) digest(req *wire.DigestRequest) (any, error) {
	res := wire.DigestResult{Digests: make([]wire.Digest, len(req.Paths))}
	for i, p := range req.Paths {
		if n, err := f.look(p); err == nil {
			sum := sha256.Sum256(n.data)
			res.Digests[i].SHA256 = sum[:]
		}
	}
	return res, nil
}
