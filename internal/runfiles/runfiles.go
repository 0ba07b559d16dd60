// Package runfiles stores files of runs on the host: the initial files of a run's workspace, the outputs, and the
// patch. The run's id is the name of the run's directory.
package runfiles

import (
	"archive/zip"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/patch"
)

// Names in a run's directory and in the archive.
const (
	baseFile    = "base.zip" // initial workspace; only while the run is running or interrupted
	madeFile    = "made.zip" // results of the run
	fetchedFile = "fetched"  // exists if madeFile comes from another host
	noteFile    = "note"     // how the run was started; only while it is running or interrupted
	needsDir    = "needs"    // followed by unnamed: files for the run on a host where it did not start
	unnamed     = "-*"       // suffix pattern of unfinished files
	aboutName   = "about.json"
	outputsDir  = "outputs/"
)

// maxBytes is the maximum size of an archive's contents. The outputs and both sides of a patch have at most 256 MiB
// each.
const maxBytes = 1 << 30

// Dir is the directory with the directories of all runs.
type Dir string

// Made contains the results of a run.
type Made struct {
	Source    string       // file of the workflow or agent
	Workspace string       // absolute path of the directory for Patch; empty without a directory
	Outputs   patch.Tree   // by path relative to the workspace
	Patch     *patch.Patch // nil if no directory was copied into the workspace
}

// Base returns the path of the file with the initial workspace of a run.
func (d Dir) Base(run string) string { return d.Of(run, baseFile) }

// Made returns the path of the file with the results of a run.
func (d Dir) Made(run string) string { return d.Of(run, madeFile) }

// Fetched marks the archive of a run as another host's archive before it is fetched. Such an archive has no Workspace,
// because another host must not choose where files are written.
func (d Dir) Fetched(run string) error {
	if err := os.MkdirAll(d.Of(run), 0o700); err != nil {
		return err
	}
	return os.WriteFile(d.Of(run, fetchedFile), nil, 0o600)
}

// KeepNote stores locally how a run was started, to prevent changes by writers of the database. A note is one line.
// While the note changes, the old note is also valid.
func (d Dir) KeepNote(run string, note ...string) error {
	return errors.Join(os.MkdirAll(d.Of(run), 0o700), WriteWhole(d.Of(run, noteFile), func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Join(note, "\n"))
		return err
	}))
}

// Notes returns the notes from KeepNote. If the run started on another host or has ended, the error wraps
// fs.ErrNotExist.
func (d Dir) Notes(run string) ([]string, error) {
	notes, err := os.ReadFile(d.Of(run, noteFile))
	return strings.Split(string(notes), "\n"), err
}

// Needs creates a directory for files for the execution of a run in a process. The process must delete it at the end.
// RemoveBegun deletes the directories of killed processes.
func (d Dir) Needs(run string) (string, error) {
	if err := os.MkdirAll(d.Of(run), 0o700); err != nil {
		return "", err
	}
	return os.MkdirTemp(d.Of(run), needsDir+unnamed)
}

// Of returns the path of a run's directory or of a file in it. The path does not have to exist.
func (d Dir) Of(run string, name ...string) string {
	if run == "." || run != filepath.Base(run) || !filepath.IsLocal(run) { // a database may contain any id
		run = "_"
	}
	return filepath.Join(append([]string{string(d), run}, name...)...)
}

// about describes the contents of an archive. The contents of changes are entries whose names are their indices.
type about struct {
	Source    string           `json:"source,omitempty"`
	Workspace string           `json:"workspace,omitempty"`
	Patch     bool             `json:"patch,omitempty"`
	Changes   []change         `json:"changes,omitempty"`
	Omitted   []patch.Conflict `json:"omitted,omitempty"`
}

type change struct {
	Path string       `json:"path"`
	Old  *fs.FileMode `json:"old,omitempty"` // missing if created
	New  *fs.FileMode `json:"new,omitempty"` // missing if deleted
}

// Save stores the results of a run and replaces earlier results. When it returns nil, the results are on disk.
func (d Dir) Save(run string, m Made) error {
	if err := os.MkdirAll(d.Of(run), 0o700); err != nil {
		return err
	}
	if err := WriteWhole(d.Made(run), m.write); err != nil {
		return err
	}
	if err := os.Remove(d.Of(run, fetchedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(syncDir(d.Of(run)), syncDir(string(d)))
}

// WriteWhole writes a file atomically.
func WriteWhole(to string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+unnamed)
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// syncDir writes the names in a directory to the disk. Windows has no such call.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (m *Made) write(f io.Writer) error {
	z := zip.NewWriter(f)
	z.RegisterCompressor(zip.Deflate,
		func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestSpeed) })
	a := about{Source: m.Source, Workspace: m.Workspace, Patch: m.Patch != nil}
	var errs []error
	put := func(name string, e patch.Entry) {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		h.SetMode(e.Mode)
		w, err := z.CreateHeader(h)
		if err == nil {
			_, err = w.Write(e.Content)
		}
		errs = append(errs, err)
	}
	for name, e := range m.Outputs {
		put(outputsDir+name, e)
	}
	if m.Patch != nil {
		a.Omitted = m.Patch.Omitted
		for i, c := range m.Patch.Changes {
			side := func(what string, e *patch.Entry) *fs.FileMode {
				if e == nil {
					return nil
				}
				put(what+strconv.Itoa(i), *e)
				return &e.Mode
			}
			a.Changes = append(a.Changes, change{Path: c.Path, Old: side("old/", c.Old), New: side("new/", c.New)})
		}
	}
	raw, err := json.Marshal(a)
	put(aboutName, patch.Entry{Mode: 0o600, Content: raw})
	return errors.Join(append(errs, err, z.Close())...)
}

// Archive contains the stored results of a run. The caller must close it.
type Archive struct {
	z       *zip.ReadCloser
	entries map[string]*zip.File // by name, because there may be very many
	a       about
}

// Open opens the results of a run. If none are stored, the error wraps fs.ErrNotExist.
func (d Dir) Open(run string) (*Archive, error) {
	z, err := zip.OpenReader(d.Of(run, madeFile))
	if err != nil {
		return nil, err
	}
	ar := &Archive{z: z, entries: map[string]*zip.File{}}
	left := uint64(maxBytes)
	for _, f := range z.File {
		if f.UncompressedSize64 > left { // an entry cannot exceed the declared size when it is read
			return nil, errors.Join(fmt.Errorf("%s contains more than %d bytes", d.Of(run, madeFile), maxBytes), z.Close())
		}
		left -= f.UncompressedSize64
		ar.entries[f.Name] = f
	}
	e, err := ar.entry(aboutName)
	if err == nil {
		err = json.Unmarshal(e.Content, &ar.a)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", d.Of(run, madeFile), err), z.Close())
	}
	if _, err := os.Lstat(d.Of(run, fetchedFile)); !errors.Is(err, fs.ErrNotExist) {
		ar.a.Workspace = ""
	}
	return ar, nil
}

// Close closes the archive.
func (ar *Archive) Close() error { return ar.z.Close() }

// Source returns the file of the workflow or agent.
func (ar *Archive) Source() string { return ar.a.Source }

// Workspace returns the directory for the patch. Without a directory or after [Dir.Fetched], it returns "".
func (ar *Archive) Workspace() string { return ar.a.Workspace }

// entry reads an entry of the archive.
func (ar *Archive) entry(name string) (e patch.Entry, err error) {
	f, ok := ar.entries[name]
	if !ok {
		return e, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	r, err := f.Open()
	if err != nil {
		return e, err
	}
	e.Mode = f.Mode() & (fs.ModePerm | fs.ModeSymlink)
	e.Content, err = io.ReadAll(r)
	return e, errors.Join(err, r.Close())
}

// Output describes an output file of a run.
type Output struct {
	Path string
	Size int64
	Mode fs.FileMode
}

// Outputs returns the output at a path or the outputs below it. For ".", it returns all outputs.
func (ar *Archive) Outputs(at string) []Output {
	var list []Output
	for _, f := range ar.z.File {
		if name, ok := strings.CutPrefix(f.Name, outputsDir); ok &&
			(at == "." || name == at || strings.HasPrefix(name, at+"/")) {
			list = append(list, Output{Path: name, Size: int64(f.UncompressedSize64), Mode: f.Mode()})
		}
	}
	slices.SortFunc(list, func(a, b Output) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// Read returns outputs with their contents.
func (ar *Archive) Read(list []Output) (patch.Tree, error) {
	tree := patch.Tree{}
	for _, o := range list {
		e, err := ar.entry(outputsDir + o.Path)
		if err != nil {
			return nil, err
		}
		tree[o.Path] = e
	}
	return tree, nil
}

// OpenOutput opens an output for reading. If it does not exist, the error wraps fs.ErrNotExist.
func (ar *Archive) OpenOutput(at string) (io.ReadCloser, error) {
	f, ok := ar.entries[outputsDir+at]
	if !ok {
		return nil, fmt.Errorf("output %s: %w", at, fs.ErrNotExist)
	}
	return f.Open()
}

// Patch returns the run's patch. If no directory was copied into the workspace, it returns nil.
func (ar *Archive) Patch() (*patch.Patch, error) {
	if !ar.a.Patch {
		return nil, nil
	}
	p := &patch.Patch{Omitted: ar.a.Omitted}
	for i, c := range ar.a.Changes {
		side := func(what string, mode *fs.FileMode) (*patch.Entry, error) {
			if mode == nil {
				return nil, nil
			}
			e, err := ar.entry(what + strconv.Itoa(i))
			e.Mode = *mode
			return &e, err
		}
		old, err := side("old/", c.Old)
		now, err2 := side("new/", c.New)
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
		p.Changes = append(p.Changes, patch.Change{Path: c.Path, Old: old, New: now})
	}
	return p, nil
}

// Runs returns the ids of the runs with stored files.
func (d Dir) Runs() ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids, err
}

// Begun returns the ids of the runs with temporary files: the initial workspace, the note, or partly written files of
// killed processes.
func (d Dir) Begun() ([]string, error) {
	ids, err := d.Runs()
	return slices.DeleteFunc(ids, func(run string) bool { return len(d.begun(run)) == 0 }), err
}

// begun returns the temporary files of a run. The id is not used as a pattern, because a database may contain any id.
func (d Dir) begun(run string) (files []string) {
	for _, pattern := range []string{baseFile, noteFile, baseFile + unnamed, noteFile + unnamed, madeFile + unnamed,
		needsDir + unnamed} {
		found, _ := fs.Glob(os.DirFS(d.Of(run)), pattern) // only an invalid pattern causes an error
		files = append(files, found...)
	}
	return files
}

// RemoveBegun deletes the temporary files of a run and keeps the results, also partly written results changed after
// before, because they may be arriving from another host. The run must have ended.
func (d Dir) RemoveBegun(run string, before time.Time) error {
	var errs []error
	for _, file := range d.begun(run) {
		info, err := os.Stat(d.Of(run, file))
		if err != nil || !strings.HasPrefix(file, madeFile) || info.ModTime().Before(before) {
			errs = append(errs, os.RemoveAll(d.Of(run, file)))
		}
	}
	return errors.Join(errs...)
}

// Remove deletes all files of a run.
func (d Dir) Remove(run string) error { return os.RemoveAll(d.Of(run)) }

// Clear deletes the files of all runs.
func (d Dir) Clear() error { return os.RemoveAll(string(d)) }

// Prune deletes the files of runs with the last change before a time, except runs for which known returns true.
func (d Dir) Prune(before time.Time, known func(run string) bool) error {
	ids, err := d.Runs()
	errs := []error{err}
	for _, id := range ids {
		if info, err := os.Stat(d.Of(id)); err == nil && info.ModTime().Before(before) && !known(id) {
			errs = append(errs, d.Remove(id))
		}
	}
	return errors.Join(errs...)
}
