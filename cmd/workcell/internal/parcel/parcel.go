// Package parcel packs the files that a run of a workflow needs, so that another machine can carry the run out: the
// workflow, its agents with the partials and skills beside them, what a model is replaced or priced by, and the
// workspace as the run begins with it.
package parcel

import (
	"archive/zip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Files are what a run needs. Paths are those of this machine, also behind Extract; empty ones are of files that there
// are none of.
type Files struct {
	Workflow string            `json:"workflow"`
	Agents   map[string]string `json:"agents,omitempty"` // by name
	Script   string            `json:"script,omitempty"`
	Prices   string            `json:"prices,omitempty"`
	Base     string            `json:"base,omitempty"` // the workspace, as package transfer keeps it

	// Skills are directories by agent, relative to that of its file.
	Skills map[string][]string `json:"-"`
}

const (
	manifest = "parcel.json"
	// maxBytes is how large all files of a parcel may be that is extracted: a database may be wrong about it.
	maxBytes = 1 << 30
	// maxEntries is how many files and directories that may be.
	maxEntries = 100_000
)

// Write packs files. A link of an agent or a workflow is packed as its target, which must be in the same directory.
func (f Files) Write(w io.Writer) error {
	p := &packer{z: zip.NewWriter(w), packed: map[string]bool{}, dirs: map[string]string{}}
	in := Files{
		Workflow: p.tree(filepath.Dir(f.Workflow), filepath.Base(f.Workflow), "workflow"), Agents: map[string]string{},
		Script: p.file("script"+filepath.Ext(f.Script), f.Script), Prices: p.file("prices"+filepath.Ext(f.Prices), f.Prices),
		Base: p.file("base.zip", f.Base),
	}
	for name, file := range f.Agents {
		in.Agents[name] = p.agent(file, f.Skills[name])
	}
	if p.err == nil {
		var raw []byte
		if raw, p.err = json.Marshal(in); p.err == nil {
			p.add(manifest, strings.NewReader(string(raw)))
		}
	}
	return errors.Join(p.err, p.z.Close())
}

// packer writes an archive. After an error it does nothing more.
type packer struct {
	z      *zip.Writer
	packed map[string]bool
	dirs   map[string]string // names of the directories of agents
	err    error
}

// file packs a file and returns its name; empty without one.
func (p *packer) file(name, file string) string {
	if file == "" || p.err != nil {
		return ""
	}
	r, err := os.Open(file)
	if err != nil {
		p.err = err
		return ""
	}
	defer r.Close() // only read from
	p.add(name, r)
	return name
}

func (p *packer) add(name string, r io.Reader) {
	if p.err != nil || p.packed[name] {
		return
	}
	p.packed[name] = true
	w, err := p.z.Create(name)
	if err == nil {
		_, err = io.Copy(w, r)
	}
	p.err = err
}

// agent packs an agent with the partials of its directory and its skills. Agents of one directory share what is beside
// them.
func (p *packer) agent(file string, skills []string) string {
	from := filepath.Dir(file)
	to, known := p.dirs[from]
	if !known {
		to = "agents/" + strconv.Itoa(len(p.dirs))
		p.dirs[from] = to
		partials, err := fs.Glob(os.DirFS(from), "_*"+filepath.Ext(file))
		if err != nil {
			p.err = err
		}
		for _, partial := range partials {
			p.tree(from, partial, to)
		}
	}
	for _, dir := range skills {
		p.tree(from, dir, to)
	}
	return p.tree(from, filepath.Base(file), to)
}

// tree packs a regular file, or the regular files below a directory, and returns its name in the parcel.
func (p *packer) tree(above, what, to string) string {
	if p.err != nil {
		return ""
	}
	root, err := os.OpenRoot(above) // links out of it are not followed
	if err != nil {
		p.err = err
		return ""
	}
	defer root.Close() // only read from
	err = fs.WalkDir(root.FS(), what, func(name string, _ fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = root.Stat(filepath.FromSlash(name))
		}
		switch {
		case err != nil:
			return fmt.Errorf("cannot pack %s in %s: %w", name, above, err)
		case name == what && !info.Mode().IsRegular() && !info.IsDir():
			return fmt.Errorf("cannot pack %s in %s: not a regular file", name, above)
		case !info.Mode().IsRegular():
			return nil
		}
		r, err := root.Open(filepath.FromSlash(name))
		if err != nil {
			return err
		}
		defer r.Close() // only read from
		p.add(path.Join(to, name), r)
		return p.err
	})
	p.err = errors.Join(p.err, err)
	return path.Join(to, what)
}

// Extract unpacks a parcel into a directory, which is made, and returns where its files are.
func Extract(file, dir string) (f Files, err error) {
	z, err := zip.OpenReader(file)
	if err != nil {
		return f, err
	}
	defer z.Close() // only read from
	entries := 0
	for _, e := range z.File {
		entries += 1 + strings.Count(e.Name, "/")
	}
	if entries > maxEntries {
		return f, fmt.Errorf("the data of a run has more than %d files and directories", maxEntries)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return f, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return f, err
	}
	defer root.Close() // each file was closed
	left := int64(maxBytes)
	for _, e := range z.File {
		n, err := extract(root, e, left)
		if err != nil {
			return f, fmt.Errorf("%s: %w", e.Name, err)
		}
		left -= n
	}
	raw, err := root.ReadFile(manifest)
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	if err != nil {
		return f, fmt.Errorf("the data of a run: %w", err)
	}
	return f.below(dir)
}

func extract(root *os.Root, e *zip.File, room int64) (int64, error) {
	name := filepath.FromSlash(e.Name)
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return 0, err
	}
	r, err := e.Open()
	if err != nil {
		return 0, err
	}
	defer r.Close() // only read from
	w, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(w, io.LimitReader(r, room+1))
	if err == nil && n > room {
		err = errors.New("the data of the run is too large")
	}
	return n, errors.Join(err, w.Close())
}

// below returns the files with their paths below a directory.
func (f Files) below(dir string) (Files, error) {
	var errs []error
	at := func(name string) string {
		if name == "" {
			return ""
		}
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			errs = append(errs, fmt.Errorf("the data of a run contains %q", name))
		}
		return filepath.Join(dir, filepath.FromSlash(name))
	}
	out := Files{Workflow: at(f.Workflow), Script: at(f.Script), Prices: at(f.Prices), Base: at(f.Base), Agents: map[string]string{}}
	for name, file := range f.Agents {
		out.Agents[name] = at(file)
	}
	return out, errors.Join(errs...)
}
