package tools

import (
	"bytes"
	"errors"
	"io/fs"
	"path"

	"github.com/workcell-dev/workcell/frontmatter"
)

// PromptFS shows the files of fsys with `sandbox:` rewritten for Genkit, for those who let Genkit load a directory:
//
//	genkit.Init(ctx, genkit.WithPlugins(plugin), genkit.WithPromptFS(tools.PromptFS(os.DirFS("."))))
//
// Without it Genkit ignores `sandbox:`. So genkit.Init with a Plugin panics, with the file's name, when Genkit loads a
// prompt from a directory that asks for a sandbox, or any prompt from a file system that is not a PromptFS. It cannot
// do so for what is loaded later by genkit.LoadPrompt and its like: use LoadPrompt or LoadAgents.
//
// Reading a malformed prompt file fails; Genkit logs that and carries on without the prompt. Use LoadAgents to have the
// error. Partials and other files pass unchanged, but partials that include themselves fail too: rendering one would
// end the program.
func PromptFS(fsys fs.FS) fs.FS { return promptFS{fsys} }

type promptFS struct{ fsys fs.FS }

// rewritten returns the content of a prompt file; ok is false for all other files.
func (p promptFS) rewritten(name string) (data []byte, ok bool, err error) {
	if path.Ext(name) != promptSuffix {
		return nil, false, nil
	}
	info, err := fs.Stat(p.fsys, name)
	if err != nil || info.IsDir() {
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
		if !errors.As(err, new(*fs.PathError)) {
			err = &fs.PathError{Op: "open", Path: name, Err: err}
		}
		return nil, err
	}
	f, err := p.fsys.Open(name)
	if !ok || err != nil {
		return f, err
	}
	return &promptFile{f, bytes.NewReader(data)}, nil
}

// promptFile is an open prompt file. Its size is that of the file as it was written.
type promptFile struct {
	fs.File
	rewritten *bytes.Reader
}

func (f *promptFile) Read(p []byte) (int, error) { return f.rewritten.Read(p) }
