// Package parcel packs the files of a workflow run, to allow another host to execute the run. A parcel contains the
// workflow, the agents with partials and skills, the files for recorded answers and model prices, and the initial
// workspace.
package parcel

import (
	"archive/zip"
	"bytes"
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

// Files are the required files of a run. Paths are local, including the paths returned by Extract. Empty paths mean
// there is no such file.
type Files struct {
	Workflow string            `json:"workflow"`
	Agents   map[string]string `json:"agents,omitempty"` // by name
	Script   string            `json:"script,omitempty"`
	Prices   string            `json:"prices,omitempty"`
	Base     string            `json:"base,omitempty"` // workspace in the format of package transfer

	// Skills are the skill directories by agent, relative to the directory of the agent's file.
	Skills map[string][]string `json:"-"`
}

const (
	manifest = "parcel.json"
	// maxBytes is the maximum total size of the files extracted from a parcel. It does not trust the sizes in the
	// database.
	maxBytes = 1 << 30
	// maxEntries is the maximum number of extracted files and directories.
	maxEntries = 100_000
)

// Write packs the files. If an agent or a workflow is a link, Write packs the link's target, which must be in the same
// directory.
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
	raw, _ := json.Marshal(in) // text can always be encoded
	p.add(manifest, bytes.NewReader(raw))
	return errors.Join(p.err, p.z.Close())
}

// packer writes an archive. After an error, the methods do nothing.
type packer struct {
	z      *zip.Writer
	packed map[string]bool
	dirs   map[string]string // names in the parcel of the agents' directories
	err    error
}

// file packs a file and returns the name in the parcel. If file is empty, it returns an empty name.
func (p *packer) file(name, file string) string {
	if file == "" || p.err != nil {
		return ""
	}
	r, err := os.Open(file)
	if err != nil {
		p.err = err
		return ""
	}
	defer r.Close() // opened for reading only
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

// agent packs an agent with skills, and the partials in the directory. Agents of the same directory share the
// partials.
func (p *packer) agent(file string, skills []string) string {
	from := filepath.Dir(file)
	to, known := p.dirs[from]
	if !known {
		to = "agents/" + strconv.Itoa(len(p.dirs))
		p.dirs[from] = to
		partials, _ := fs.Glob(os.DirFS(from), "_*"+filepath.Ext(file)) // the extension of agents is a valid pattern
		for _, partial := range partials {
			p.tree(from, partial, to)
		}
	}
	for _, dir := range skills {
		p.tree(from, dir, to)
	}
	return p.tree(from, filepath.Base(file), to)
}

// tree packs a regular file, or the regular files below a directory, and returns the name in the parcel.
func (p *packer) tree(above, what, to string) string {
	if p.err != nil {
		return ""
	}
	root, err := os.OpenRoot(above) // does not follow links out of the directory
	if err != nil {
		p.err = err
		return ""
	}
	defer root.Close() // opened for reading only
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
		defer r.Close() // opened for reading only
		p.add(path.Join(to, name), r)
		return p.err
	})
	p.err = errors.Join(p.err, err)
	return path.Join(to, what)
}

// Extract creates dir, unpacks a parcel into it, and returns the paths of the files.
func Extract(file, dir string) (f Files, err error) {
	z, err := zip.OpenReader(file)
	if err != nil {
		return f, err
	}
	defer z.Close() // opened for reading only
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
	defer r.Close() // opened for reading only
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

// below returns the files with their paths below dir.
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
	out := Files{
		Workflow: at(f.Workflow), Script: at(f.Script), Prices: at(f.Prices), Base: at(f.Base),
		Agents: map[string]string{},
	}
	for name, file := range f.Agents {
		out.Agents[name] = at(file)
	}
	return out, errors.Join(errs...)
}
