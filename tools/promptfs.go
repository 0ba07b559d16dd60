package tools

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path"

	"github.com/workcell-dev/workcell/frontmatter"
)

// PromptFS shows the files of fsys with `sandbox:` rewritten for Genkit, for those who let Genkit load a directory:
//
//	genkit.Init(ctx, genkit.WithPlugins(plugin), genkit.WithPromptFS(tools.PromptFS(os.DirFS("."))))
//
// Without it Genkit ignores `sandbox:`. So genkit.Init with a Plugin panics, with the file's name, when Genkit loads a
// prompt from a directory that asks for a sandbox, or any prompt from a file system that is not a PromptFS. It cannot do so
// for what is loaded later by genkit.LoadPrompt and its like: use LoadPrompt or LoadAgents.
//
// Reading a malformed prompt file fails; Genkit logs that and carries on without the prompt. Use LoadAgents to have the
// error. Partials and other files pass unchanged, but partials that include themselves fail too: rendering one would
// end the program.
func PromptFS(fsys fs.FS) fs.FS { return promptFS{fsys} }

type promptFS struct{ fsys fs.FS }

var (
	_ fs.ReadFileFS = promptFS{}
	_ fs.ReadDirFS  = promptFS{}
	_ fs.StatFS     = promptFS{}
)

// rewritten returns the content of a prompt file; ok is false for all other files.
func (p promptFS) rewritten(name string) (data []byte, ok bool, err error) {
	if path.Ext(name) != promptSuffix {
		return nil, false, nil
	}
	info, err := fs.Stat(p.fsys, name)
	if err != nil || !info.Mode().IsRegular() {
		return nil, false, err
	}
	if isPartial(name) {
		return nil, false, p.checkPartials(name)
	}
	src, err := frontmatter.ReadFS(p.fsys, name, name)
	if err != nil {
		return nil, false, err
	}
	doc, err := CheckPrompt(name, src)
	if err != nil {
		return nil, false, err
	}
	data, err = doc.Source()
	if err == nil && doc.Sandbox == nil {
		data = withMark(data)
	}
	return data, err == nil, err
}

// checkPartials refuses a partial that includes itself, over others or not.
func (p promptFS) checkPartials(name string) error {
	found, err := findPartials(p.fsys, "", true)
	if err != nil {
		return err
	}
	return found.cycleFrom(partialName(name))
}

// Open returns a prompt file as rewritten, everything else as it is.
func (p promptFS) Open(name string) (fs.File, error) {
	data, ok, err := p.rewritten(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	f, err := p.fsys.Open(name)
	if err != nil {
		return nil, err
	}
	if !ok {
		if dir, isDir := f.(fs.ReadDirFile); isDir {
			return &dirFile{ReadDirFile: dir, fsys: p, name: name}, nil
		}
		return f, nil
	}
	info, err := f.Stat()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	return &memFile{Reader: bytes.NewReader(data), info: sizedInfo{info, int64(len(data))}}, nil
}

// ReadFile returns a prompt file as rewritten, everything else as it is.
func (p promptFS) ReadFile(name string) ([]byte, error) {
	data, ok, err := p.rewritten(name)
	if err != nil {
		return nil, pathError("read", name, err)
	}
	if ok {
		return data, nil
	}
	return fs.ReadFile(p.fsys, name)
}

// Stat returns the size that ReadFile has.
func (p promptFS) Stat(name string) (fs.FileInfo, error) {
	info, err := fs.Stat(p.fsys, name)
	if err != nil {
		return nil, err
	}
	data, ok, err := p.rewritten(name)
	if err != nil || !ok {
		return info, nil // a file that cannot be read can still be seen
	}
	return sizedInfo{info, int64(len(data))}, nil
}

// ReadDir lists a directory.
func (p promptFS) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(p.fsys, name)
	return p.entries(name, entries), err
}

func (p promptFS) entries(dir string, list []fs.DirEntry) []fs.DirEntry {
	for i, e := range list {
		list[i] = dirEntry{DirEntry: e, fsys: p, path: path.Join(dir, e.Name())}
	}
	return list
}

// dirFile is an open directory, or an open file of a file system that does not distinguish the two.
type dirFile struct {
	fs.ReadDirFile
	fsys promptFS
	name string
}

func (d *dirFile) ReadDir(n int) ([]fs.DirEntry, error) {
	list, err := d.ReadDirFile.ReadDir(n)
	return d.fsys.entries(d.name, list), err
}

func pathError(op, name string, err error) error {
	var done *fs.PathError
	if errors.As(err, &done) {
		return err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

type dirEntry struct {
	fs.DirEntry
	fsys promptFS
	path string
}

func (d dirEntry) Info() (fs.FileInfo, error) {
	info, err := d.DirEntry.Info()
	if err != nil || !info.Mode().IsRegular() {
		return info, err
	}
	return d.fsys.Stat(d.path)
}

type sizedInfo struct {
	fs.FileInfo
	size int64
}

func (i sizedInfo) Size() int64 { return i.size }

type memFile struct {
	*bytes.Reader
	info fs.FileInfo
}

func (f *memFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *memFile) Close() error               { return nil }

var _ io.ReadSeeker = (*memFile)(nil)
